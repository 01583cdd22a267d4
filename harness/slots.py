"""A rank's slot: what changes many times a second, in shared memory that outlives the rank.

Slots feed the launcher's watch and gauges of the present moment. Nothing that is counted, reported
or judged is read from here; that is the log's part.
"""

import mmap
import os
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Self


class Mark(IntEnum):
    """What a rank says that it is doing."""

    JOINING = 0
    RESTORING = 1
    STEPPING = 2
    EVALUATING = 3
    SAVING = 4
    DRAINED = 5
    """Its state is saved and it leaves on request, before the last step."""
    FINISHED = 6
    """Its last step is done and durable: whatever happens to it now, the job has finished."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One consistent reading of a slot."""

    attempt: int
    pid: int
    mark: Mark
    step: int
    """Steps finished."""
    progress: int
    """Rises with every sign of life; only its changes mean anything."""
    updated_ns: int
    """CLOCK_MONOTONIC of the last change."""
    own_ns: int
    """Of the last step: from its start to this rank's last gradient."""
    wait_ns: int
    """Of the last step: from there to its end."""
    loss: float
    """Last loss that was read; NaN before the first."""


# The version counts up before and after each write: odd while one is under way.
_VERSION = struct.Struct("=q")
_BODY = struct.Struct("=8qd")
SIZE = _VERSION.size + _BODY.size


class SlotWriter:
    """The rank's own end. One process writes a slot; the next attempt's rank takes it over."""

    def __init__(self, path: Path, attempt: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, SIZE)
            # Room on the disk, or an error that can be told: a write into a hole without is SIGBUS.
            os.posix_fallocate(descriptor, 0, SIZE)
            self._memory = mmap.mmap(descriptor, SIZE)
        finally:
            os.close(descriptor)
        self._version = 0
        self._progress = 0
        self._slot = Slot(attempt, os.getpid(), Mark.JOINING, 0, 0, 0, 0, 0, float("nan"))
        self.update()

    def update(
        self,
        mark: Mark | None = None,
        step: int | None = None,
        own_ns: int | None = None,
        wait_ns: int | None = None,
        loss: float | None = None,
    ) -> None:
        """Show what is given, keep the rest; counts as progress."""
        old = self._slot
        self._progress += 1
        self._slot = Slot(
            old.attempt,
            old.pid,
            old.mark if mark is None else mark,
            old.step if step is None else step,
            self._progress,
            time.monotonic_ns(),
            old.own_ns if own_ns is None else own_ns,
            old.wait_ns if wait_ns is None else wait_ns,
            old.loss if loss is None else loss,
        )
        new = self._slot
        _VERSION.pack_into(self._memory, 0, self._version + 1)
        _BODY.pack_into(
            self._memory,
            _VERSION.size,
            new.attempt,
            new.pid,
            new.mark,
            new.step,
            new.progress,
            new.updated_ns,
            new.own_ns,
            new.wait_ns,
            new.loss,
        )
        self._version += 2
        _VERSION.pack_into(self._memory, 0, self._version)

    def close(self) -> None:
        """Let go of the memory; what it says stays readable."""
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read(path: Path) -> Slot | None:
    """What the slot says, or None where there is none or its writer died in the middle of a write."""
    for _ in range(100):
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
        if len(raw) != SIZE:
            return None
        (version,) = _VERSION.unpack_from(raw, 0)
        again = path.read_bytes()[: _VERSION.size]
        if version % 2 == 0 and again == raw[: _VERSION.size]:
            return _decoded(raw)
    return None


def _decoded(raw: bytes) -> Slot | None:
    """The slot in `raw`; None if another version of this library wrote it."""
    attempt, pid, mark, step, progress, updated_ns, own_ns, wait_ns, loss = _BODY.unpack_from(
        raw, _VERSION.size
    )
    if mark not in tuple(Mark):
        return None
    return Slot(attempt, pid, Mark(mark), step, progress, updated_ns, own_ns, wait_ns, loss)
