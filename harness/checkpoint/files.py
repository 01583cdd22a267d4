"""How bytes get to storage and back: each one is counted in a checksum on its way."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import xxhash

from harness.checkpoint.manifest import FileRecord
from harness.points import Point, reach

_CHUNK_BYTES = 8 << 20
_READ_BYTES = 256 << 10
"""Stays in the cache of one core: read, hashed and copied, 1.4 × as fast as 8 MB."""

Sink = Callable[[int, memoryview], None]
"""Takes a portion of a file, and where in the file it begins."""


class SourceError(Exception):
    """The chunks themselves failed, by `error`; no other try would have them whole."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__()


class Outgoing:
    """Chunks on their way to storage: counted in a checksum once, given as often as it takes.

    Each must stay as it is until the last try has ended.
    """

    def __init__(self, chunks: Iterable[bytes | memoryview]) -> None:
        self._coming = _portions(chunks)
        self._given: list[memoryview] = []
        self._checksum = xxhash.xxh3_128()

    def portions(self, moved: Callable[[int], None]) -> Iterator[memoryview]:
        """All of them, from the first; `moved` is called with the size of each."""
        for portion in list(self._given):
            moved(len(portion))
            yield portion
        while (coming := self._next()) is not None:
            moved(len(coming))
            self._given.append(coming)
            self._checksum.update(coming)
            yield coming

    def _next(self) -> memoryview | None:
        try:
            return next(self._coming, None)
        except BaseException as error:
            raise SourceError(error) from error

    def record(self) -> FileRecord:
        """Size and checksum of what was given."""
        return FileRecord(sum(map(len, self._given)), self._checksum.hexdigest())


def read_through(file: Any, size: int, sink: Sink | None = None) -> FileRecord:
    """Read a file that should have `size` bytes; its size and checksum as they were found.

    `sink` gets each portion, which is valid until it returns, and where in the file that begins. A
    file that is too long counts one byte too many.
    """
    checksum = xxhash.xxh3_128()
    scratch = memoryview(bytearray(min(size + 1, _READ_BYTES)))
    position, half = 0, size // 2
    while position <= size:
        if position == half:
            reach(Point.RESTORE_READ)
        most = (half if position < half else size + 1) - position
        count = file.readinto(scratch[:most])
        if not count:
            break
        portion = scratch[:count]
        checksum.update(portion)
        if sink is not None:
            sink(position, portion)
        position += count
    return FileRecord(position, checksum.hexdigest())


def _portions(chunks: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    """`chunks` in portions small enough to be hashed while they are still in the cache."""
    for chunk in chunks:
        view = memoryview(chunk)
        for start in range(0, len(view), _CHUNK_BYTES):
            yield view[start : start + _CHUNK_BYTES]
