"""The command `harness faults`: look at a plan, make a tape of it, break a run with that.

Exit status: 0 done, 1 refused, 2 a mistake in how it was called or in a file that it was given.
"""

import argparse
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from faultinject import tape, tapefile
from faultinject.arm import NotAllowed, arm, armed_tape, claimed
from faultinject.inject import WRITER, Bell, Injector
from faultinject.tape import LONGEST_S, Plan, Tape, counted
from harness import settings
from harness.fold import MOST_RANKS
from harness.parent import die_with
from harness.recorder import Recorder
from harness.rundir import RunDir
from harness.settings import Record

DONE, NO, USAGE = 0, 1, 2
WAIT_S = 600.0
START_PERIOD_S = 0.2
"""Between looks for a run that has not begun."""


def faults(argv: Sequence[str]) -> int:
    """Plan faults, look at them, and inject them into a run."""
    return command(argv, "harness faults")


def command(argv: Sequence[str], program: str) -> int:
    """Do what `argv` says and return the exit status."""
    try:
        arguments = _parser(program).parse_args(argv)
    except SystemExit as end:  # argparse has printed why
        return USAGE if end.code else DONE
    act: Callable[[argparse.Namespace], int] = arguments.act
    try:
        return act(arguments)
    except NotAllowed as refused:
        return _failed(program, refused, NO)
    except (ValueError, OSError) as mistake:
        return _failed(program, mistake, USAGE)


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description=faults.__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    show = commands.add_parser("show", help="print the faults of a plan")
    show.add_argument("plan", type=Path, metavar="PLAN", help="the plan, a TOML file")
    show.add_argument("--ranks", type=_ranks, default=2, help="ranks of the job (default 2)")
    show.set_defaults(act=_show)

    make = commands.add_parser("compile", help="make a tape of a plan")
    make.add_argument("plan", type=Path, metavar="PLAN", help="the plan, a TOML file")
    make.add_argument("--ranks", type=_ranks, required=True, help="ranks of the job")
    make.add_argument("--out", type=Path, required=True, metavar="TAPE", help="file to write")
    _add_checkpoints(make)
    make.set_defaults(act=_compile)

    check = commands.add_parser("check", help="say whether a tape can be read")
    check.add_argument("tape", type=Path, metavar="TAPE", help="the tape")
    check.add_argument("--ranks", type=_ranks, help="ranks of the job that it is for")
    _add_checkpoints(check)
    check.set_defaults(act=_check)

    _add_inject(commands)
    return parser


def _add_inject(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    inject = commands.add_parser(
        "inject",
        help="inject the faults of a tape into a run",
        description="Inject the faults of a tape into a run, until all are accounted for or the run"
        " ends. Works beside `harness run` and beside plain torchrun. SIGTERM or Ctrl-C ends it;"
        " called again it goes on with what is left.",
    )
    inject.add_argument("--run", type=Path, required=True, metavar="DIR", help="the run directory")
    inject.add_argument(
        "--tape",
        type=Path,
        metavar="TAPE",
        help="arm the run and give it this tape; without it the run must be armed already",
    )
    inject.add_argument(
        "--wait-s",
        type=_seconds,
        metavar="SECONDS",
        default=WAIT_S,
        help="seconds to wait for the run to begin (default 600)",
    )
    inject.add_argument(
        "--with-parent",
        action="store_true",
        help="end with the process that started this one, and leave Ctrl-C to it",
    )
    inject.set_defaults(act=_inject)


def _add_checkpoints(parser: argparse.ArgumentParser) -> None:
    where = "where the run's checkpoints are: rules for storage are refused if not behind chaos::"
    parser.add_argument("--checkpoints", metavar="URL", help=where)


def _ranks(text: str) -> int:
    """A world size, for argparse."""
    if not text.isdecimal() or len(text) > 7 or not 1 <= int(text) <= MOST_RANKS:
        rule = f"is not a number of ranks, from 1 to {MOST_RANKS}"
        raise argparse.ArgumentTypeError(f"{text[:40]!r} {rule}")
    return int(text)


def _seconds(text: str) -> float:
    """A time to wait, for argparse."""
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = math.nan
    if not 0 <= wait_s <= LONGEST_S:
        rule = f"is not a time from 0 to {LONGEST_S:g} s"
        raise argparse.ArgumentTypeError(f"{text[:40]!r} {rule}")
    return wait_s


def _compiled(arguments: argparse.Namespace) -> tuple[Plan, Tape]:
    from faultinject import plan  # pydantic; an injector has no use for it

    read = plan.read(arguments.plan)
    try:
        return read, tape.compile(read, arguments.ranks)
    except ValueError as mistakes:
        lines = "\n".join(f"{arguments.plan}: {line}" for line in str(mistakes).splitlines())
        raise ValueError(lines) from None


def _check_ranks(path: Path, made: Tape, ranks: int | None) -> None:
    """Refuse faults of ranks that are not there."""
    gone = sorted(
        {
            fault.target.number
            for fault in made.faults
            if fault.target.number >= (ranks or MOST_RANKS)
        }
    )
    if gone:
        raise ValueError(
            f"{path}: rank {gone[0]} does not exist at {ranks} ranks, and the tape is for"
            f" {made.world_size}: compile it anew with --ranks {ranks}"
        )


def _check_reach(path: Path, made: Tape, checkpoints: str | None) -> None:
    """Refuse rules that would never meet a call."""
    if made.storage and checkpoints is not None and not checkpoints.startswith("chaos::"):
        raise ValueError(
            f"{path}: [[storage]] spoils what is behind chaos::, and the checkpoints are not: give"
            " --checkpoints chaos::URL (chaos::file:///some/path), or take [[storage]] out"
        )


def _show(arguments: argparse.Namespace) -> int:
    from faultinject.show import rendered

    sys.stdout.write(rendered(*_compiled(arguments)))
    return DONE


def _compile(arguments: argparse.Namespace) -> int:
    _, made = _compiled(arguments)
    _check_reach(arguments.plan, made, arguments.checkpoints)
    tapefile.write(arguments.out, made)
    _say(f"{counted(made)} written to {arguments.out}")
    return DONE


def _check(arguments: argparse.Namespace) -> int:
    read = tapefile.read(arguments.tape)
    _check_reach(arguments.tape, read, arguments.checkpoints)
    _check_ranks(arguments.tape, read, arguments.ranks)
    _say(f"{counted(read)} in {arguments.tape}")
    return DONE


def _inject(arguments: argparse.Namespace) -> int:
    signals = [signal.SIGTERM]
    if arguments.with_parent:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        signals.append(signal.SIGINT)
    run_dir = RunDir.at(arguments.run)
    if arguments.tape is not None:
        tapefile.read(arguments.tape)  # a tape that is none is said now, not when the run begins
    with Bell(tuple(signals)) as bell:
        if arguments.with_parent:
            die_with(os.getppid(), signal.SIGTERM)
        record = _begun(run_dir, bell, arguments.wait_s)
        if record is None:
            return DONE
        if arguments.tape is not None:
            arm(run_dir, record, arguments.tape)
            record = settings.read(run_dir.settings) or record
        armed = armed_tape(run_dir, record)
        with claimed(run_dir), Recorder(run_dir, record.run_id, WRITER) as recorder:
            injector = Injector(run_dir, armed, recorder, _say)
            _say(injector.run(bell))
            _say(injector.account())
    return DONE


def _begun(run_dir: RunDir, bell: Bell, wait_s: float) -> Record | None:
    """What `run.toml` says, once there is one; None if asked to leave before."""
    left_s = wait_s
    if not run_dir.settings.exists():
        _say(f"waiting up to {wait_s:g} s for a run to begin in {run_dir.path}")
    while (record := settings.read(run_dir.settings)) is None:
        if left_s <= 0:
            raise NotAllowed(f"no run began in {run_dir.path} within {wait_s:g} s")
        if bell.wait(START_PERIOD_S):
            return None
        left_s -= START_PERIOD_S
    return record


def _say(line: str) -> None:
    """One line for whoever is listening; nobody listening is no reason to stop."""
    try:
        sys.stdout.write(f"faults: {line}\n")
        sys.stdout.flush()
    except OSError:
        return


def _failed(program: str, error: Exception, status: int) -> int:
    if isinstance(error, OSError) and error.filename is not None:
        error = ValueError(f"{error.filename}: {error.strerror}")
    for line in str(error).splitlines():
        sys.stderr.write(f"{program}: {line}\n")
    return status
