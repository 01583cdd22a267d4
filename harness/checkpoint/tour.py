"""Every file below a folder of some file system, or an error.

fsspec's own `find` leaves out each folder that it cannot list, be it for an outage; whoever looked for
the newest checkpoint there would take an older one, or none.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem

Info = Mapping[str, Any]
"""A listed thing as fsspec has it: `name`, `size`, `type`."""


def files_below(files: fsspec.AbstractFileSystem, folder: str) -> dict[str, Info]:
    """Each file below `folder`, by its path; none where it is not there. Raises what a listing raises."""
    if finds_by_itself(files):
        found: dict[str, Info] = files.find(folder, detail=True)
        return found
    return {str(info["name"]): info for info in _below(files, folder.rstrip("/"))}


def finds_by_itself(files: fsspec.AbstractFileSystem) -> bool:
    """True for a file system, below what is wrapped around it, that has a `find` of its own."""
    kind = type(files)
    if isinstance(files, AsyncFileSystem) and kind._find is not AsyncFileSystem._find:
        return True
    if kind.find not in (fsspec.AbstractFileSystem.find, AsyncFileSystem.find):
        return True
    inner = getattr(files, "fs", None)
    return isinstance(inner, fsspec.AbstractFileSystem) and finds_by_itself(inner)


def _below(files: fsspec.AbstractFileSystem, folder: str) -> Iterator[Info]:
    try:
        listed = files.ls(folder, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return
    for info in listed:
        path = str(info["name"]).rstrip("/")
        if path == folder:
            continue
        if info["type"] == "directory":
            yield from _below(files, path)
        else:
            yield info
