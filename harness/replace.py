"""Replaces a small file whole or not at all: written beside its name, then renamed over it.

Whoever is killed in between leaves the old file or the new one; an error leaves nothing beside it.
"""

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Make `content` all that `path` holds; where it is `durable`, a power cut leaves it so.

    Raises `OSError` if it cannot, and for what is no file: a device is not to be replaced by one.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "a device or a pipe is not replaced: name a file", str(path))
    beside = path.with_name(f".{path.name}.{threading.get_native_id()}")
    try:
        beside.write_bytes(content)
        if durable:
            sync(beside)  # or the name may outlive the bytes
        beside.replace(path)
        if durable:
            sync(path.parent)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from None
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Make what a file holds, or the names in a folder, last through a power cut. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
