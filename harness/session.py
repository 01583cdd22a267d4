"""What rank 0 settles for all ranks of an attempt: where the run is, its number, its settings.

One rank decides and the others learn it through the store, so that no two ranks can disagree.
"""

import json
import os
import sys
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from torch.distributed import Store

from harness import settings
from harness.beginning import began_ns, start_ticks
from harness.checkpoint.tell import warn
from harness.membership import Membership
from harness.recorder import boot_id
from harness.rundir import RunDir, check_local
from harness.settings import Record, Setting
from harness.storage import probed_store


@dataclass(frozen=True, slots=True)
class Session:
    """What rank 0 settles for all ranks of an attempt."""

    run_dir: str
    run_id: str
    attempt: int
    first_attempt: int
    """The first one of this launch."""
    settings: Mapping[str, Setting]
    began_ns: int
    """CLOCK_MONOTONIC at which its launch began; read off before any rank writes to the log."""


def agree(messages: Store, rank: int, settle: Callable[[], Session]) -> Session:
    """What rank 0 settled, on every rank; its mistake is every rank's `ValueError`."""
    if rank == 0:
        try:
            settled = settle()
        except ValueError as error:
            messages.set("session", msgspec.json.encode({"error": str(error)}).decode())
            raise
        messages.set("session", msgspec.json.encode(settled).decode())
        return settled
    answer = bytes(messages.get("session"))
    refusal = msgspec.json.decode(answer).get("error")
    if refusal is not None:
        raise ValueError(f"rank 0 refused to start: {refusal}")
    return msgspec.json.decode(answer, type=Session)


def settle(member: Membership, run: str | None, chosen: Mapping[str, Any]) -> Session:
    """Rank 0's decisions, with `chosen` as what the script asked for; the run directory is made.

    Raises `ValueError` for settings that are wrong, or that this run was not started with.
    """
    environ = os.environ
    where = environ.get("HARNESS_RUN_DIR") or run or default_run_dir(member)
    check_local(where)
    run_dir = RunDir.at(where)
    run_dir.create()
    with settings.turn(run_dir.settings):
        return _settled(member, run_dir, chosen)


def _settled(member: Membership, run_dir: RunDir, chosen: Mapping[str, Any]) -> Session:
    environ = os.environ
    earlier = settings.read(run_dir.settings)
    resolved = settings.renew(
        _from_launcher(environ),
        {} if earlier is None else earlier.settings,
        [("join", dict(chosen))],
    )
    if earlier is not None:
        run_id = earlier.run_id
    else:
        run_id = environ.get("HARNESS_RUN_ID") or uuid.uuid4().hex[:12]
    given = environ.get("HARNESS_ATTEMPT")
    attempt = int(given) if given else _claim(run_dir, run_id, resolved)
    first = environ.get("HARNESS_FIRST_ATTEMPT")
    session = Session(
        run_dir=str(run_dir.path),
        run_id=run_id,
        attempt=attempt,
        first_attempt=int(first) if first else first_of_launch(run_dir, member.launcher(), attempt),
        settings=resolved,
        began_ns=began_ns(run_dir, member.launcher()),
    )
    record = Record(
        run_id=run_id,
        command=tuple(sys.argv) if earlier is None else earlier.command,
        settings=resolved,
        environment={} if earlier is None else earlier.environment,
        armed=earlier is not None and earlier.armed,
    )
    if record != earlier:  # a disk may be full since it was written
        settings.write(run_dir.settings, record)
    return session


def note_environment(run_dir: RunDir, fingerprint: Mapping[str, str]) -> None:
    """Add what rank 0 found of its environment to `run.toml`, beside what a launcher wrote."""
    with settings.turn(run_dir.settings):
        record = settings.read(run_dir.settings)
        if record is None:
            return
        environment = {**record.environment, **fingerprint}
        if environment != record.environment:
            settings.write(run_dir.settings, replace(record, environment=environment))


def first_of_launch(run_dir: RunDir, launcher: int, attempt: int) -> int:
    """The first attempt that process `launcher` started and that came as far as rank 0's enrolment.

    `attempt` itself where none did. Restarts do not tell: the first attempts may have failed before.
    """
    try:
        earlier = msgspec.json.decode(run_dir.worker(0).read_bytes())
        same_boot, ticks = earlier["boot_id"] == boot_id(), int(earlier["start_ticks"])
        first = int(earlier["first_attempt"])
    except (OSError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError):
        return attempt
    return first if same_boot and ticks >= start_ticks(launcher) else attempt


def resume_from(asked: str, departures: Collection[int], attempt: int, first_attempt: int) -> str:
    """What `resume` means for this attempt: it is asked of a launch, not of each of its restarts.

    Once an attempt of this launch has chosen its state, later ones go on from the newest. Those that
    have are in `departures`; a launch may skip numbers, and count fewer starts than attempts.
    """
    chosen = any(first_attempt <= earlier < attempt for earlier in departures)
    return "auto" if chosen else asked


def default_run_dir(member: Membership) -> Path:
    """`runs/<script>-<start of its launcher>`: the same through all restarts of one `torchrun`."""
    process = member.launcher()
    return Path("runs") / f"{Path(sys.argv[0]).stem or 'run'}-{start_ticks(process)}-{process}"


def _from_launcher(environ: Mapping[str, str]) -> list[tuple[str, dict[str, Any]]]:
    """The layers of settings above the script's: flags, then the environment."""
    passed = environ.get("HARNESS_SETTINGS")
    if passed is None:
        return [("environment", dict(settings.from_environment(environ)))]
    layers: dict[str, dict[str, Any]] = {"flag": {}, "environment": {}}
    for key, (value, origin) in json.loads(passed).items():
        layers.setdefault(origin, {})[key] = value
    return list(layers.items())


def _claim(run_dir: RunDir, run_id: str, resolved: Mapping[str, Setting]) -> int:
    """A new attempt number, where no launcher of ours has claimed one."""
    return probed_store(run_dir, run_id, settings.values(resolved), warn).claim_attempt()
