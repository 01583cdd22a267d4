"""Where a run is kept, what it was and is asked to be, and that nobody else runs it: `run.toml`.

A directory belongs to one run for ever. Launching it again continues it, and what another launch fixed
cannot be changed. Whatever cannot be is refused here, before any rank starts.
"""

import os
import platform
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness import locks, settings, storage
from harness.checkpoint import named
from harness.events import Tier
from harness.intervals.asked import Off, parse
from harness.replace import replace_file
from harness.rundir import RunDir
from harness.settings import Record, Setting, Settings
from launch import companions
from launch.flags import UsageError
from launch.options import Options
from launch.rank import Kind, Program


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that can be launched."""

    run_dir: RunDir
    record: Record
    continued: bool
    """It was launched before."""


def prepare(asked: Options, environ: Mapping[str, str]) -> Prepared:
    """Settle where the run is and what it is. Touches nothing. Raises `UsageError`."""
    run_dir = RunDir.at(asked.run or _unused(asked.program))
    earlier = _earlier(run_dir, asked.program)
    resolved = _resolved(asked, earlier, environ)
    wanted = settings.values(resolved)
    _check_memory(wanted)
    resume = wanted.resume
    if earlier is None and resume.isdecimal():
        raise UsageError(
            f"--resume {resume}: {run_dir.path} is a new run and has no checkpoints: leave it out, or"
            " name the --run that is to go on"
        )
    record = Record(
        run_id=earlier.run_id if earlier else f"{_stem(asked.program)}-{secrets.token_hex(4)}",
        command=_command(asked.program),
        settings=resolved,
        environment=earlier.environment if earlier else _environment(),
        armed=bool(asked.faults or asked.tape or (earlier and earlier.armed)),
    )
    return Prepared(run_dir, record, earlier is not None)


def _check_memory(wanted: Settings) -> None:
    """Refuse a place for copies in memory that no rank could use."""
    if not isinstance(parse(wanted.memory_every, Tier.MEMORY), Off):
        try:
            named.check(wanted.memory_dir)
        except ValueError as error:
            raise UsageError(str(error)) from None


@contextmanager
def held(run_dir: RunDir) -> Iterator[None]:
    """Make the directory and be its one launcher. Raises `UsageError` if there is one already.

    No fork may happen before: it would hold the lock on.
    """
    try:
        run_dir.create()
        descriptor = os.open(run_dir.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"--run {run_dir.path} cannot be used: {error.strerror}") from None
    try:
        locks.take(descriptor)
        yield
    except BlockingIOError:
        raise UsageError(
            f"another launcher is at work in {run_dir.path}: wait for it, or name another --run"
        ) from None
    finally:
        os.close(descriptor)


@contextmanager
def writing(run_dir: RunDir) -> Iterator[None]:
    """Raise `UsageError` where a run could not even begin to be written down."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{error.filename or run_dir.path} cannot be written: {error.strerror or error}; make room"
            " or a way to write there, or name another --run"
        ) from None


def write_down(prepared: Prepared, asked: Options, ranks: int, warn: Callable[[str], None]) -> None:
    """Put the run's record and its tape in their places; where its disk is full, room is made first.

    Raises `UsageError`.
    """
    run_dir, wanted = prepared.run_dir, settings.values(prepared.record.settings)
    with writing(run_dir):
        try:
            _write_down(prepared, asked, ranks)
        except OSError as error:
            if not (prepared.continued and storage.is_full(error)):
                raise
            storage.make_room(run_dir, prepared.record.run_id, wanted, warn)
            try:
                _write_down(prepared, asked, ranks)
            except OSError as again:
                if not storage.is_full(again):
                    raise
                raise UsageError(
                    f"{run_dir.settings} cannot be written: {again.strerror}; {storage.way_out(wanted)}"
                ) from None


def _write_down(prepared: Prepared, asked: Options, ranks: int) -> None:
    arm(prepared, asked, ranks)
    with settings.turn(prepared.run_dir.settings):
        settings.write(prepared.run_dir.settings, prepared.record)


@contextmanager
def undone_if_refused(prepared: Prepared) -> Iterator[None]:
    """What is refused after it was written down has fixed nothing: the next launch may ask anew."""
    try:
        yield
    except UsageError:
        if not prepared.continued:
            run_dir = prepared.run_dir
            spoilt = (run_dir.storage_faults, run_dir.storage_history, run_dir.event_file("store"))
            for path in (run_dir.settings, run_dir.tape, *spoilt):
                path.unlink(missing_ok=True)
        raise


def arm(prepared: Prepared, asked: Options, ranks: int) -> None:
    """Put the tape of faults in its place. Raises `UsageError` for a plan or tape that is none.

    A run keeps its first tape: the same again is taken for the same.
    """
    if asked.faults is None and asked.tape is None:
        return
    tape = prepared.run_dir.tape
    checkpoints = settings.values(prepared.record.settings).checkpoints
    content = _tape(asked, ranks, checkpoints, tape.with_name(f".{tape.name}.{os.getpid()}"))
    if tape.exists() and tape.read_bytes() != content:
        raise UsageError(
            f"{prepared.run_dir.path} has another tape of faults already, and a run keeps its"
            " tape: leave --faults and --tape out to go on with it, or name another --run"
        )
    replace_file(tape, content, durable=True)


def _tape(asked: Options, ranks: int, checkpoints: str, fresh: Path) -> bytes:
    """The tape that was asked for; a plan is compiled to `fresh` on the way."""
    if asked.tape is not None:
        _compiler(companions.checker(asked.tape, ranks, checkpoints))
        return asked.tape.read_bytes()
    assert asked.faults is not None, "one of the two was asked for"
    try:
        _compiler(companions.compiler(asked.faults, ranks, fresh, checkpoints))
        return fresh.read_bytes()
    finally:
        fresh.unlink(missing_ok=True)


def _compiler(command: Sequence[str]) -> None:
    command = [sys.executable, "-m", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UsageError(done.stderr.replace("python -m faultinject: ", "").strip())


def _earlier(run_dir: RunDir, program: Program) -> Record | None:
    """What an earlier launch wrote down; None for a new run."""
    try:
        earlier = settings.read(run_dir.settings)
    except OSError as error:
        raise UsageError(f"--run {run_dir.path} cannot be used: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    if earlier is not None:
        was, now = _named(earlier.command), _named(_command(program))
        if was != now:
            raise UsageError(
                f"{run_dir.path} is the run of {was}, and this is {now}: name another --run"
            )
    elif run_dir.path.is_dir() and _is_in_use(run_dir.path):
        raise UsageError(
            f"{run_dir.path} is not empty and holds no run: name another --run, or empty it"
        )
    return earlier


def _is_in_use(folder: Path) -> bool:
    """True if there is any file below `folder`, hidden ones apart.

    A launch that ended before it began left empty folders, and no more than the half of a file.
    """
    return any(not path.name.startswith(".") and not path.is_dir() for path in folder.rglob("*"))


def _resolved(
    asked: Options, earlier: Record | None, environ: Mapping[str, str]
) -> dict[str, Setting]:
    layers = [("flag", asked.settings), ("environment", settings.from_environment(environ))]
    try:
        return settings.renew(layers, {} if earlier is None else earlier.settings)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _unused(program: Program) -> Path:
    """`runs/<script>-<time>`, a directory that is not there yet."""
    first = path = Path("runs") / f"{_stem(program)}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    while path.exists():
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


def _stem(program: Program) -> str:
    if program.kind is Kind.MODULE:
        return program.target.rpartition(".")[2]
    return Path(program.target).resolve().stem


def _command(program: Program) -> tuple[str, ...]:
    prefix = ("-m",) if program.kind is Kind.MODULE else ()
    return (*prefix, program.target, *program.arguments)


def _named(command: Sequence[str]) -> str:
    """What tells two programs apart: their name, not their arguments nor where they lie."""
    return f"-m {command[1]}" if command[0] == "-m" else Path(command[0]).name


def _environment() -> dict[str, str]:
    import torch

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.platform(),
    }
