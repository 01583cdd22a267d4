"""Stamps events and writes them. The only reader of the clock for events.

One writer, one file: locked for the writer's life, appended to by one `write` per entry, and rolled
at 64 MB. What a killed predecessor left half written is closed and never touched again.
"""

import fcntl
import os
import socket
import threading
import time
import weakref
from functools import cache
from pathlib import Path
from typing import Protocol, Self

from harness.events import SCHEMA, Entry, Event, Header
from harness.lines import encode
from harness.rundir import RunDir

ROLL_BYTES = 64_000_000
"""Size at which a writer goes on in another file."""


class Clock(Protocol):
    """Where the time comes from; tests bring one of their own."""

    def monotonic_ns(self) -> int:
        """CLOCK_MONOTONIC: never steps, the same for all processes since the machine's boot."""

    def wall_ns(self) -> int:
        """Unix time, which may step in either direction."""


class SystemClock:
    """The machine's clocks."""

    def monotonic_ns(self) -> int:
        """See `Clock`."""
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        """See `Clock`."""
        return time.time_ns()


SYSTEM_CLOCK = SystemClock()


def boot_id() -> str:
    """Names the boot of this machine: within one, monotonic times of all processes compare."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


class Recorder:
    """Writes the events of one writer; safe to use from several threads of one process.

    The first file stays open and locked for life: `/proc/PID/fd` shows who the writer is. After a
    fork the child holds no descriptor of it, and cannot write.
    """

    attempt: int
    """Stamped on each entry; set it when an attempt begins."""
    path: Path
    """The file that is written now."""

    def __init__(
        self,
        run_dir: RunDir,
        run_id: str,
        writer: str,
        attempt: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.attempt = attempt
        self._run_dir, self._run_id, self._writer, self._clock = run_dir, run_id, writer, clock
        self._lock = threading.Lock()
        self._sequence = 0
        self._torn = False
        self._descriptor = self._first = -1
        run_dir.events.mkdir(parents=True, exist_ok=True)
        try:
            self._open(self._newest_roll())
        except BaseException:
            self._forget()  # its lock would keep the next recorder from the file
            raise
        self._first = self._descriptor
        _watch_forks().add(self)

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC, as entries carry it."""
        return self._clock.monotonic_ns()

    def write(self, event: Event, at_ns: int | None = None) -> Entry:
        """Append `event`, at `at_ns` if it happened before now; it is in the file on return."""
        with self._lock:
            if self._size >= ROLL_BYTES:
                self._roll()
            at_ns = self._clock.monotonic_ns() if at_ns is None else at_ns
            entry = Entry(at_ns, self.attempt, self._sequence, event, self._writer)
            self._append(encode(entry))
            self._sequence += 1
        return entry

    def close(self) -> None:
        """Let go of the files; what is written stays."""
        with self._lock:
            self._forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _newest_roll(self) -> int:
        roll = 0
        while self._run_dir.event_file(self._writer, roll + 1).exists():
            roll += 1
        return roll

    def _open(self, roll: int) -> None:
        """Open and lock the first file from `roll` on that is free and has room."""
        while True:
            path = self._run_dir.event_file(self._writer, roll)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o644)
            if _locked(descriptor) and os.fstat(descriptor).st_size < ROLL_BYTES:
                break
            os.close(descriptor)
            roll += 1
        self.path, self._descriptor, self._number = path, descriptor, roll
        self._size = os.fstat(descriptor).st_size
        self._torn = self._size > 0 and os.pread(descriptor, 1, self._size - 1) != b"\n"
        self._append(encode(self._header()))

    def _roll(self) -> None:
        """Go on in the next file; where it cannot begin, the next write tries again."""
        before = self.path, self._descriptor, self._number, self._size, self._torn
        try:
            self._open(self._number + 1)
        except BaseException:
            if self._descriptor != before[1]:
                os.close(self._descriptor)
            self.path, self._descriptor, self._number, self._size, self._torn = before
            raise
        if before[1] != self._first:
            os.close(before[1])

    def _header(self) -> Header:
        return Header(
            schema=SCHEMA,
            run_id=self._run_id,
            writer=self._writer,
            host=socket.gethostname(),
            boot_id=boot_id(),
            pid=os.getpid(),
            monotonic_ns=self._clock.monotonic_ns(),
            wall_ns=self._clock.wall_ns(),
        )

    def _append(self, line: bytes) -> None:
        """One write; should the disk take a part only, the next line starts on a fresh one."""
        if self._descriptor < 0:
            raise ValueError(f"{self.path} is closed in this process: open a recorder of its own")
        data = b"\n" + line if self._torn else line
        self._torn = True
        written = os.write(self._descriptor, data)
        self._size += written
        if written < len(data):
            raise OSError(f"{self.path} took {written} of {len(data)} bytes: is the disk full?")
        self._torn = False

    def _forget(self) -> None:
        for descriptor in {self._descriptor, self._first} - {-1}:
            os.close(descriptor)
        self._descriptor = self._first = -1


@cache
def _watch_forks() -> "weakref.WeakSet[Recorder]":
    """Every recorder of this process: a forked child has to forget each. Never registered twice."""
    open_here: weakref.WeakSet[Recorder] = weakref.WeakSet()

    def forget() -> None:
        for recorder in list(open_here):
            recorder._forget()

    os.register_at_fork(after_in_child=forget)
    return open_here


def _locked(descriptor: int) -> bool:
    """Lock the file; False if another open file holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
