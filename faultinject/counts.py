"""How often calls were made and spoilt, over all processes and attempts of a run: a locked file of numbers.

So a restart goes on counting, and does not repeat what has happened.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_FORM = struct.Struct("<3Q")


@dataclass(slots=True)
class Count:
    """What is counted for one rule."""

    calls: int = 0
    acted: int = 0
    taken_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of all rules of a run, by their place on the tape."""

    path: Path

    @contextmanager
    def of(self, place: int) -> Iterator[Count]:
        """The count of one rule, to be changed; nobody else counts or logs meanwhile."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            found = os.pread(descriptor, _FORM.size, place * _FORM.size)
            count = Count(*_FORM.unpack(found.ljust(_FORM.size, b"\0")))
            yield count
            now = _FORM.pack(count.calls, count.acted, count.taken_bytes)
            os.pwrite(descriptor, now, place * _FORM.size)
        finally:
            os.close(descriptor)
