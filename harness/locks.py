"""Locks on files and folders (`flock`), as signs of life: whether somebody holds one, and how one is taken beside such looks.

A lock goes with its process, however that ended; a pid could be another process by now.
"""

import fcntl
import os
import time
from pathlib import Path

_LOOKS = 20
_LOOK_S = 0.01


def is_held(path: Path) -> bool:
    """True if somebody holds it alone, which excludes the shared lock that is tried for an instant.

    False for what is not there; raises `OSError` for what cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def take(descriptor: int) -> None:
    """Lock an open file alone. Raises `BlockingIOError` if it is held for longer than a look takes."""
    for _ in range(_LOOKS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOOK_S)
        else:
            return
    raise BlockingIOError("somebody else holds the lock")
