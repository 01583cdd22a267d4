"""Tries out the disk on which runs will be kept, by doing there what a run does."""

import fcntl
import mmap
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from launch.doctor.facts import Disk

_MB = 1_000_000
_OCTAL = {r"\040": " ", r"\011": "\t", r"\134": "\\"}


def tried(run: Path) -> Disk:
    """The disk that `run` is or would be on. Nothing is left there."""
    place = existing(run)
    if (beyond := _in_the_way(run)) is not None:
        return Disk(beyond, error="it is no folder")
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=place) as folder:
            sync_s = _used(Path(folder))
        free = shutil.disk_usage(place).free
    except OSError as error:
        return Disk(place, error=f"{error.strerror or error}")
    # Mounts are listed by where they really are: a link says nothing of the disk that it leads to.
    return Disk(place, kind_of(place.resolve(), Path("/proc/mounts").read_text()), free, sync_s)


def existing(path: Path) -> Path:
    """The nearest folder on the way to `path` that is there."""
    return next((one for one in _way(path) if _is_folder(one)), Path("/"))


def missing(path: Path) -> list[Path]:
    """`path` and the folders on the way to it that are not there, it first."""
    return [one for one in _way(path) if _is_folder(one) is None]


def _in_the_way(path: Path) -> Path | None:
    """What is there on the way to `path`, or in its place, and is no folder."""
    return next((one for one in _way(path) if _is_folder(one) is False), None)


def _way(path: Path) -> tuple[Path, ...]:
    """`path` and all that is above it."""
    path = path.absolute()
    return path, *path.parents


def _is_folder(path: Path) -> bool | None:
    """None where there is nothing, or nothing that may be looked at."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return None


def _used(folder: Path) -> float:
    """Write, lock, map, link and rename there; gives the seconds until a megabyte was durable."""
    data, slot = folder / "data", folder / "slot"
    with data.open("wb") as file:
        began_s = time.monotonic()
        file.write(os.urandom(_MB))
        file.flush()
        os.fsync(file.fileno())
        sync_s = time.monotonic() - began_s
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with slot.open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, mmap.PAGESIZE)
        mmap.mmap(file.fileno(), mmap.PAGESIZE).close()
    (folder / "commit").hardlink_to(data)
    data.replace(folder / "renamed")
    return sync_s


def kind_of(path: Path, mounts: str) -> str:
    """The type of the file system that `path` is on, by the text of /proc/mounts.

    `path` has no links in it.
    """
    best, kind = -1, "unknown"
    for line in mounts.splitlines():
        _, where, name, *_ = line.split()
        for code, character in _OCTAL.items():
            where = where.replace(code, character)
        if path.is_relative_to(where) and len(where) >= best:
            best, kind = len(where), name
    return kind
