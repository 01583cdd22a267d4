"""How bytes get to storage and back: each one is counted in a checksum on its way.

Here, too, is what fsspec cannot promise and each kind of storage has to bring: that a file appears
whole or not at all and only if it was not there, and that it is still there after a power cut.
"""

import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import xxhash

from harness.checkpoint.manifest import FileRecord

_CHUNK_BYTES = 8 << 20


def write_through(file: Any, chunks: Iterable[bytes | memoryview]) -> FileRecord:
    """Write `chunks` and make them durable; size and checksum of what was written."""
    checksum = xxhash.xxh3_128()
    size = 0
    for chunk in _portions(chunks):
        file.write(chunk)
        checksum.update(chunk)
        size += len(chunk)
    file.flush()
    _fsync(file)
    return FileRecord(size, checksum.hexdigest())


def read_through(file: Any, size: int, targets: Iterable[tuple[int, memoryview]]) -> FileRecord:
    """Read a file that should have `size` bytes; its size and checksum as they were found.

    Bytes from where a target begins go into its view, for as long as that is; targets do not
    overlap. A file that is too long counts one byte too many.
    """
    checksum = xxhash.xxh3_128()
    position = 0
    for begin, view in sorted(targets, key=_place):
        position += _skip(file, begin - position, checksum)
        position += _read(file, view, checksum)
    position += _skip(file, size + 1 - position, checksum)
    return FileRecord(position, checksum.hexdigest())


def _place(target: tuple[int, memoryview]) -> tuple[int, int]:
    """Order in the file; of two that begin alike, one is empty and comes first."""
    return target[0], len(target[1])


def _portions(chunks: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    """`chunks` in portions small enough to be hashed while they are still in the cache."""
    for chunk in chunks:
        view = memoryview(chunk)
        for start in range(0, len(view), _CHUNK_BYTES):
            yield view[start : start + _CHUNK_BYTES]


def _read(file: Any, view: memoryview, checksum: xxhash.xxh3_128) -> int:
    """Fill `view` as far as the file goes; the number of bytes that it had."""
    filled = 0
    while filled < len(view):
        count = file.readinto(view[filled : filled + _CHUNK_BYTES])
        if not count:
            break
        checksum.update(view[filled : filled + count])
        filled += count
    return filled


def _skip(file: Any, count: int, checksum: xxhash.xxh3_128) -> int:
    """Read past `count` bytes; the number of bytes that there were."""
    scratch = memoryview(bytearray(min(count, _CHUNK_BYTES)))
    passed = 0
    while passed < count:
        got = _read(file, scratch[: count - passed], checksum)
        if not got:
            break
        passed += got
    return passed


def _fsync(file: Any) -> None:
    """Through the disk's cache, where there is a disk behind `file`."""
    try:
        descriptor = file.fileno()
    except (AttributeError, OSError):  # an object store's stream has none
        return
    os.fsync(descriptor)


# ── what only file:// needs: another storage brings its own two ─────────────────────────────────


def create_file(path: Path, data: bytes) -> bool:
    """Create-if-absent by a hard link: whole or not at all, and it never replaces anything."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            # A server that answers a repeated request may refuse what it has just done.
            if temporary.stat().st_nlink != 2:
                return False
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)
    return True


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
