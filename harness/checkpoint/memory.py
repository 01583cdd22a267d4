"""Memory that another process may see too once it is handed the descriptor.

Nothing of what has no name outlives the processes that hold it, however they die; files with a name are
named.py's to take away. It never shrinks under a reader.
"""

import fcntl
import mmap
import os
import weakref
from pathlib import Path

_NAME = "harness-copy"


class Memory:
    """Bytes of this process, or of one before it. Raises `OSError` where there is not that much memory."""

    nameless = False
    """A name was wanted for it, and could not be had."""

    def __init__(self, size_bytes: int) -> None:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self._own(os.memfd_create(_NAME, flags))
        length = max(size_bytes, mmap.PAGESIZE)
        # Room now, or an error that can be told: a first touch without is SIGBUS.
        os.posix_fallocate(self.descriptor, 0, length)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self._map(length, size_bytes)

    @classmethod
    def named(cls, path: Path, size_bytes: int) -> "Memory":
        """A file in the place of what was at `path`, which whoever has that mapped still sees."""
        memory = cls.__new__(cls)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        memory._own(os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            length = max(size_bytes, mmap.PAGESIZE)
            os.posix_fallocate(memory.descriptor, 0, length)
            memory._map(length, size_bytes)
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        return memory

    @classmethod
    def of(cls, descriptor: int) -> "Memory":
        """The memory of another process, to write to from here on; the descriptor is ours from now.

        Raises `ValueError` for one that its owner could shrink.
        """
        memory = cls.__new__(cls)
        memory._own(descriptor)
        _check_kept(descriptor)
        size = os.fstat(descriptor).st_size
        memory._map(size, size, mmap.MAP_POPULATE)
        return memory

    def _own(self, descriptor: int) -> None:
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def _map(self, length: int, size_bytes: int, flags: int = 0) -> None:
        self.size_bytes = size_bytes
        self._mapped = mmap.mmap(self.descriptor, length, mmap.MAP_SHARED | flags)
        self.view = memoryview(self._mapped)[:size_bytes]


def seen(descriptor: int) -> memoryview:
    """What lies in another process' memory, for reading; unmapped once no one looks any more.

    Closes the descriptor. Raises `ValueError` for one that its owner could shrink under the reader.
    """
    try:
        _check_kept(descriptor)
        return memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)


def _check_kept(descriptor: int) -> None:
    """Raise `ValueError` for memory without a name that may shrink; nobody cuts short files of ours."""
    is_named = not os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:")  # noqa: PTH115
    if is_named:
        return
    if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise ValueError("memory that may shrink is not read: a read past its end is SIGBUS")
