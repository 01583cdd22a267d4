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
    GROUPING = 7
    """It forms the process group with the others."""
    SETTING_UP = 8
    """It has joined, and makes its data and its model; the loop has not begun."""


class Stage(IntEnum):
    """How far into a step a rank has come, in the order in which that goes."""

    BOUNDARY = 0
    """Between two steps."""
    BEGUN = 1
    """In the loop's own code, before its first batch or gradient."""
    LOADING = 2
    """It waits for a batch."""
    COMPUTING = 3
    """Forward and backward."""
    REDUCING = 4
    """All of its gradients are there; what it waits for is the others'."""
    UPDATING = 5
    """In the optimizer, so the reduction is over."""
    UPDATED = 6
    """In the loop's own code, after the optimizer."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One consistent reading of a slot."""

    attempt: int
    pid: int
    mark: Mark
    stage: Stage
    step: int
    """Steps finished."""
    reached: int
    """Places passed since that step: batches, gradients, optimizers. Whoever passed fewer is behind."""
    taken: int
    """Steps finished in this attempt."""
    signs: int
    """Signs of life beside places passed."""
    updated_ns: int
    """CLOCK_MONOTONIC of the last change of anything but `stage`, `reached` and `signs`."""
    own_ns: int
    """Of the last step: from its start to this rank's last gradient."""
    wait_ns: int
    """Of the last step: from there to its end."""
    loss: float
    """Last loss that was read; NaN before the first."""

    @property
    def progress(self) -> tuple[int, int, int]:
        """Changes with every sign of life; that it changed is all that it means."""
        return self.step, self.reached, self.signs

    @property
    def in_first_step(self) -> bool:
        """It has finished no step in this attempt."""
        return self.taken == 0


SCHEMA = 2
# The version counts up before and after each write: odd while one is under way.
_VERSION = struct.Struct("=q")
_BODY = struct.Struct("=12qd")
SIZE = _VERSION.size + _BODY.size
# Words that are also written alone, for a write of all of them takes as long as twenty of one.
_STAGE, _REACHED, _SIGNS = 5, 7, 9


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
        self._words = memoryview(self._memory).cast("q")
        self._version = self._words[0] & ~1  # a reader may be in the middle of what was here before
        self._signs = 0
        self._reached = 0
        self._taken = 0
        self._stage = Stage.BOUNDARY
        self._identity = (attempt, os.getpid())
        self._shown: tuple[Mark, int, int, int, float] = (Mark.JOINING, 0, 0, 0, float("nan"))
        self._write()

    def update(
        self,
        mark: Mark | None = None,
        step: int | None = None,
        own_ns: int | None = None,
        wait_ns: int | None = None,
        loss: float | None = None,
    ) -> None:
        """Show what is given, keep the rest. Only what changes something counts as progress.

        Whoever repeats itself while it waits for others is alive, and may wait for ever. A `step`
        begins at its boundary; with `own_ns` it was taken, else it is where the attempt resumes.
        """
        old_mark, old_step, old_own_ns, old_wait_ns, old_loss = before = self._shown
        self._shown = (
            old_mark if mark is None else mark,
            old_step if step is None else step,
            old_own_ns if own_ns is None else own_ns,
            old_wait_ns if wait_ns is None else wait_ns,
            old_loss if loss is None else loss,
        )
        if step is not None:
            self._stage, self._reached = Stage.BOUNDARY, 0
            self._taken += own_ns is not None
        self._signs += self._shown != before
        self._write()

    def enter(self, stage: Stage) -> None:
        """Pass into `stage` of a step."""
        self._stage = self._words[_STAGE] = stage
        self.advance()

    def advance(self) -> None:
        """Pass one more place of a step, one that every rank passes, such as a gradient."""
        self._reached += 1
        self._words[_REACHED] = self._reached

    def beat(self) -> None:
        """Give a sign of life from a place that other ranks may not pass."""
        self._signs += 1
        self._words[_SIGNS] = self._signs

    def close(self) -> None:
        """Let go of the memory; what it says stays readable."""
        self._words.release()
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _write(self) -> None:
        mark, step, own_ns, wait_ns, loss = self._shown
        self._words[0] = self._version + 1
        _BODY.pack_into(
            self._memory,
            _VERSION.size,
            SCHEMA,
            *self._identity,
            mark,
            self._stage,
            step,
            self._reached,
            self._taken,
            self._signs,
            time.monotonic_ns(),
            own_ns,
            wait_ns,
            loss,
        )
        self._version += 2
        self._words[0] = self._version


def read(path: Path) -> Slot | None:
    """What the slot says, or None where none can be read or its writer died in the middle of a write."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        for _ in range(100):
            raw = os.pread(descriptor, SIZE + 1, 0)
            if len(raw) != SIZE:
                return None
            (version,) = _VERSION.unpack_from(raw, 0)
            if version % 2 == 0 and os.pread(descriptor, _VERSION.size, 0) == raw[: _VERSION.size]:
                return _decoded(raw)
    except OSError:  # a folder, a pipe
        return None
    finally:
        os.close(descriptor)
    return None


def _decoded(raw: bytes) -> Slot | None:
    """The slot in `raw`; None if another version of this library wrote it."""
    schema, attempt, pid, mark, stage, *rest = _BODY.unpack_from(raw, _VERSION.size)
    if schema != SCHEMA or mark not in _MARKS or stage not in _STAGES:
        return None
    return Slot(attempt, pid, _MARKS[mark], _STAGES[stage], *rest)


_MARKS = {int(mark): mark for mark in Mark}
_STAGES = {int(stage): stage for stage in Stage}
