"""Memory without a name, which another process may see too once it is handed the descriptor.

Nothing of it outlives the processes that hold it, however they die. It never shrinks under a reader.
"""

import fcntl
import mmap
import os
import weakref

_NAME = "harness-copy"


class Memory:
    """Bytes of this process. Raises `OSError` where there is not that much memory."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.descriptor = os.memfd_create(_NAME, flags)
        weakref.finalize(self, os.close, self.descriptor)
        length = max(size_bytes, mmap.PAGESIZE)
        # Room now, or an error that can be told: a first touch without is SIGBUS.
        os.posix_fallocate(self.descriptor, 0, length)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self._mapped = mmap.mmap(self.descriptor, length)
        self.view = memoryview(self._mapped)[:size_bytes]


def seen(descriptor: int) -> memoryview:
    """What lies in another process' memory, for reading; unmapped once no one looks any more.

    Closes the descriptor. Raises `ValueError` for one that its owner could shrink under the reader.
    """
    try:
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError("memory that may shrink is not read: a read past its end is SIGBUS")
        return memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)
