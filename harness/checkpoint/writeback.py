"""Has the kernel begin to write what is in a file, so that the disk works while the rest is still coming.

Without it everything waits in memory for the `fsync` at the end. It promises nothing: that `fsync` does.
"""

import ctypes
import os
from collections.abc import Callable

_SYNC_FILE_RANGE_WRITE = 2


def starter(descriptor: int) -> Callable[[], None]:
    """What to call after each write to a file that is written from its begin on."""
    libc = ctypes.CDLL(None)
    begun = 0

    def start() -> None:
        nonlocal begun
        end = os.lseek(descriptor, 0, os.SEEK_CUR)
        begin, length = ctypes.c_int64(begun), ctypes.c_int64(end - begun)
        # Where the file system cannot, the fsync has more to do.
        libc.sync_file_range(descriptor, begin, length, _SYNC_FILE_RANGE_WRITE)
        begun = end

    return start
