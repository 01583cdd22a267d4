"""Whether a run may be broken at all: it must be armed, its tape fixed, and one injector at work.

Handing over a tape arms the run, and `run.toml` says so from then on. A run keeps its first tape.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from faultinject import kinds, tapefile
from faultinject.tape import Tape
from harness import settings
from harness.rundir import RunDir
from harness.settings import Record


class NotAllowed(Exception):  # noqa: N818 - it reads as what it says
    """This run is not to be broken, or not by this injector."""


def arm(run_dir: RunDir, record: Record, tape_file: Path) -> None:
    """Let faults into the run, as `tape_file` has them.

    Raises `NotAllowed` if the run has another tape, `ValueError` if the tape cannot be read.
    """
    tape = tapefile.read(tape_file)
    if not run_dir.tape.exists():
        tapefile.write(run_dir.tape, tape)
    elif tapefile.read(run_dir.tape) != tape:
        raise NotAllowed(
            f"{run_dir.path} has another tape already, and a run keeps its tape:"
            " leave --tape out to go on with it, or break another run"
        )
    with settings.turn(run_dir.settings):
        newest = settings.read(run_dir.settings) or record
        settings.write(run_dir.settings, replace(newest, armed=True))


def armed_tape(run_dir: RunDir, record: Record) -> Tape:
    """The faults that the run may be hit with.

    Raises `NotAllowed` if it is not armed, `ValueError` if its tape is missing or cannot be used.
    """
    if not record.armed:
        raise NotAllowed(
            f"{run_dir.path} is not armed, so nothing may be injected: start it by"
            " `harness run --faults PLAN`, or give --tape to arm it now"
        )
    if not run_dir.tape.exists():
        raise ValueError(f"{run_dir.path} has no tape.jsonl: give one by --tape")
    tape = tapefile.read(run_dir.tape)
    unknown = sorted({fault.kind for fault in tape.faults} - set(kinds.names()))
    if unknown:
        known = ", ".join(kinds.names())
        raise ValueError(f"{run_dir.tape}: unknown fault kind {unknown[0]!r}; known: {known}")
    return tape


@contextmanager
def claimed(run_dir: RunDir) -> Iterator[None]:
    """Be the run's one injector. Raises `NotAllowed` if another one is at work."""
    descriptor = os.open(run_dir.tape, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotAllowed(f"another injector is at work in {run_dir.path}") from None
        yield
    finally:
        os.close(descriptor)
