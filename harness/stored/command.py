"""The command `harness checkpoint`: look at stored checkpoints, verify, remove, export, import them.

Exit status: 0 done, 1 the answer is no, 2 a mistake in how it was called or in what it was given.
"""

import sys
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError

from harness.checkpoint import audit
from harness.checkpoint.manifest import DamagedError, Place
from harness.checkpoint.store import Store
from harness.commands import DONE, NO, USAGE, Flag, Whole
from harness.conversion import MOST
from harness.stored import HELP
from harness.stored import listing as listings
from harness.stored.listing import Listing, Row, State
from harness.stored.opening import begun, opened
from harness.stored.removal import chosen, is_named

STATUS = "\n\nExit status: 0 done or yes, 1 no, 2 wrong usage."


class Refusal(Exception):  # noqa: N818  # often no mistake: the answer is no
    """What was asked for is not done."""

    def __init__(self, reason: str, status: int = NO) -> None:
        self.reason = reason
        self.status = status
        super().__init__(reason)


def main(arguments: Sequence[str]) -> int:
    """Do what `arguments` say and return the exit status."""
    app = App(
        name="harness checkpoint", help=HELP + STATUS, help_format="plaintext", version_flags=[]
    )
    for command in (ls, verify, rm, export):
        app.command(command)
    app.command(import_, name="import")
    try:
        command, bound, _ = app.parse_args(list(arguments), exit_on_error=False, print_error=True)
    except CycloptsError:
        return USAGE
    try:
        status = command(*bound.args, **bound.kwargs)
    except Refusal as refusal:
        return _refused(refusal.reason, refusal.status)
    except DamagedError as error:
        return _refused(str(error), NO)
    except (ValueError, OSError, MemoryError) as error:
        return _refused(_told(error), USAGE)
    if not arguments:
        return USAGE
    return DONE if status is None else int(status)


# ── the commands ────────────────────────────────────────────────────────────────────────────────


def ls(
    run: str,
    /,
    *,
    verify: Annotated[bool, Flag] = False,
    json: Annotated[bool, Flag] = False,
) -> int:
    """List the checkpoints of a run, and how its attempts descend from one another.

    Parameters
    ----------
    run
        Run directory, or fsspec URL of a run's checkpoints.
    verify
        Read every byte and say which are as written; exit status 1 if one of the run is not.
    json
        One JSON object instead of the table for people.
    """
    store = opened(run).store

    def read(place: Place) -> None:
        audit.verify(store, place)

    listing = listings.listed(store, listings.now(), read if verify else None)
    if json:
        _print(dumps(listing.to_json(), indent=2))
    else:
        _show(listing)
    bad = [row for row in listing.rows if row.state is State.COMMITTED and row.verified is False]
    return NO if bad else DONE


def verify(run: str, step: str = "all", /) -> int:
    """Read every byte of a checkpoint, or of all, and say whether it is as written.

    Exit status 1 if one is not, or if there is none.

    Parameters
    ----------
    run
        Run directory, or fsspec URL of a run's checkpoints.
    step
        Step of the checkpoint, or `all`.
    """
    store = opened(run).store
    whole = [_verified(store, place) for place in _places(store, step)]
    return DONE if whole and all(whole) else NO


def rm(
    run: str,
    /,
    *steps: str,
    yes: Annotated[bool, Flag] = False,
    force: Annotated[bool, Flag] = False,
) -> int:
    """Remove checkpoints, each one's commit first.

    Parameters
    ----------
    run
        Run directory, or fsspec URL of a run's checkpoints.
    steps
        Steps of what is to go; also names, such as step-00000020-1.
    yes
        Do not ask.
    force
        Remove the last good checkpoint too.
    """
    store = opened(run).store
    listing = listings.listed(store, listings.now())
    sound = {row.name for row in listing.rows if audit.is_known_sound(store, _place(row))}
    removal = chosen(listing, steps, sound)
    if not removal.rows:
        raise Refusal(removal.refusal or "say which steps are to go", USAGE)
    if removal.refusal and not force:
        raise Refusal(f"{removal.refusal}: add --force to remove it all the same")
    for row in removal.rows:
        _print(f"{row.name}: {row.state}, {_size(row)}")
    if not yes and not _agreed(f"Remove {len(removal.rows)} of {len(listing.rows)}?"):
        raise Refusal("nothing was removed")
    for row in removal.rows:
        store.remove(_place(row))
        _print(f"removed {row.name}")
    return DONE


def export(run: str, step: str, /, *, to: Path) -> int:
    """Write a verified checkpoint to one file, or a directory, that other programs read.

    Parameters
    ----------
    run
        Run directory, or fsspec URL of a run's checkpoints.
    step
        Step of the checkpoint.
    to
        FILE.safetensors, FILE.pt (torch.save of plain containers), or a torch.distributed.checkpoint directory.
    """
    store = opened(run).store
    place = _of_step(store, step)[-1]
    from harness.stored import document, forms

    forms.write(document.of_store(store, place), to)
    _print(f"{place.name}, verified, is in {to}")
    return DONE


def import_(
    file: Path,
    /,
    *,
    to: str,
    step: Annotated[int | None, Whole] = None,
    script: str | None = None,
    force: Annotated[bool, Flag] = False,
) -> int:
    """Make a checkpoint of an exported one, from which the run goes on.

    Parameters
    ----------
    file
        What `harness checkpoint export` wrote.
    to
        Run directory, or fsspec URL of a run's checkpoints.
    step
        Steps that the state has finished; those that it had when it was exported by default.
    script
        Makes a run that is not there yet, for this script to go on with.
    force
        Let it take the place of the checkpoints that the run has.
    """
    from harness.stored import forms, placing

    document = forms.read(file)
    at = document.about.step if step is None else step
    if not 0 <= at <= MOST:
        raise ValueError(f"--step {at} is not a step: it is from 0 to {MOST}")
    where = begun(to, script)
    good = _of_run(where.store)
    if good and not force:
        raise Refusal(
            f"the run has checkpoints up to step {good[-1].step}, and would go on from this one"
            " instead: add --force if that is meant"
        )
    attempt = where.store.claim_attempt(where.newest_attempt)
    place = placing.place_document(where.store, document, at, attempt)
    audit.verify(where.store, place)
    _print(f"{place.name}, verified, is in {where.store.root}: the run goes on from step {at}")
    return DONE


# ── what they share ─────────────────────────────────────────────────────────────────────────────


def _places(store: Store, step: str) -> list[Place]:
    """The commits of a step; or all. Raises `Refusal`."""
    return store.committed() if step == "all" else _of_step(store, step)


def _of_step(store: Store, step: str) -> list[Place]:
    """The commits of a step, those in the run's history last. Raises `Refusal`."""
    committed, chain = store.committed(), store.chain()
    wanted = [place for place in committed if is_named(place.name, place.step, step)]
    if not wanted:
        there = ", ".join(dict.fromkeys(str(place.step) for place in committed)) or "none"
        raise Refusal(f"no checkpoint of step {step} in {store.root}; there are: {there}", USAGE)
    return sorted(wanted, key=lambda place: (chain.accepts(place.step, place.attempt), place))


def _of_run(store: Store) -> list[Place]:
    """The commits that count."""
    chain = store.chain()
    return [place for place in store.committed() if chain.accepts(place.step, place.attempt)]


def _verified(store: Store, place: Place) -> bool:
    try:
        files = audit.verify(store, place).files
    except DamagedError as error:
        _print(f"{place.name}: {error}")
        return False
    _print(f"{place.name}: whole, {len(files)} files")
    return True


def _place(row: Row) -> Place:
    place = Place.parse(row.name)
    assert place is not None, row
    return place


def _show(listing: Listing) -> None:
    from rich.console import Console

    from harness.stored import table

    # A pipe gets one line for each row, whatever there is to say.
    width = None if sys.stdout.isatty() else 500
    Console(width=width, highlight=False).print(table.rendered(listing))


def _size(row: Row) -> str:
    from harness.stored import table

    return table.size(row.size_bytes)


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise Refusal("nobody is there to ask: add --yes", USAGE)
    sys.stdout.write(f"{question} [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _print(line: str) -> None:
    print(line)  # noqa: T201


def _told(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or f"{type(error).__name__}: there is not enough memory for it"


def _refused(reason: str, status: int) -> int:
    for line in reason.splitlines():
        print(f"harness checkpoint: {line}", file=sys.stderr)  # noqa: T201
    return status
