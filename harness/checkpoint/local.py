"""Files of one machine, or of a file system that is mounted: what fsspec cannot promise is promised here.

A file is written under a hidden name, made durable, and only then gets its own. A new one gets it by a
hard link, which replaces nothing.
"""

import errno
import os
import re
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from harness.checkpoint.objects import Entry
from harness.checkpoint.writeback import starter
from harness.replace import sync

_HIDDEN = re.compile(r"\.(.+)\.[0-9a-f]{32}")
"""Name of a file that is being written, around the one that it will get."""


@dataclass(frozen=True, slots=True)
class LocalObjects:
    """See `Objects`. Bytes go through fsspec; names go through the kernel."""

    files: fsspec.AbstractFileSystem
    root: str

    def put(self, name: str, chunks: Iterable[memoryview], *, fresh: bool = False) -> None:
        """See `Objects`."""
        path = self._path(name)
        self._make(path.parent)
        hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            with self.files.open(str(hidden), "wb") as file:
                begin_to_write = starter(file.fileno())
                for chunk in chunks:
                    file.write(chunk)
                    begin_to_write()
                file.flush()
                os.fsync(file.fileno())
            if fresh:
                _link(hidden, path)
            else:
                hidden.replace(path)
        finally:
            hidden.unlink(missing_ok=True)
        sync(path.parent)

    def open(self, name: str) -> AbstractContextManager[Any]:
        """See `Objects`."""
        path = self._path(name)
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            raise OSError(errno.EINVAL, "it is no file", str(path))
        opened: AbstractContextManager[Any] = self.files.open(str(path), "rb")
        return opened

    def listing(self, under: str = "") -> Mapping[str, Entry]:
        """See `Objects`; fsspec's own `find` leaves out what it cannot list, and what links lead to."""
        found = ((self._name(file.path), _seen(file)) for file in _files(str(self._path(under))))
        return {name: entry for name, entry in found if entry and not _is_hidden(name)}

    def delete(self, name: str) -> None:
        """See `Objects`; the folder goes with its last file, or what was to be its first."""
        path = self._path(name)
        try:
            self.files.rm_file(str(path))
            sync(path.parent)
        finally:
            self._drop_folder(path.parent)

    def sweep(self, is_dead: Callable[[str, float], bool]) -> None:
        """See `Objects`."""
        now_s = time.time()
        for path, name in self._hidden():
            with suppress(FileNotFoundError):  # its writer was quicker
                visible = self._name(str(path.with_name(name)))
                if is_dead(visible, now_s - path.stat().st_mtime):
                    path.unlink()
        for folder in self._empty():
            if is_dead(f"{folder.name}/", now_s - folder.stat().st_mtime):
                self._drop_folder(folder)

    def _hidden(self) -> Iterator[tuple[Path, str]]:
        """What is being written, in the root and the folders in it, and the name that it will get."""
        for folder in (Path(self.root), *self._folders()):
            with suppress(FileNotFoundError):  # it went meanwhile
                for path in list(folder.iterdir()):
                    match = _HIDDEN.fullmatch(path.name)
                    if match is not None and path.is_file():
                        yield path, match[1]

    def _empty(self) -> list[Path]:
        return [folder for folder in self._folders() if not any(folder.iterdir())]

    def _folders(self) -> list[Path]:
        return [path for path in Path(self.root).iterdir() if path.is_dir()]

    def _make(self, folder: Path) -> None:
        """Make a folder of the root, durably; the root itself must be there."""
        if str(folder) != self.root and not folder.is_dir():
            folder.mkdir(exist_ok=True)
            sync(folder.parent)

    def _drop_folder(self, folder: Path) -> None:
        with suppress(OSError):  # others are still in it
            if str(folder) != self.root:
                folder.rmdir()

    def _path(self, name: str) -> Path:
        return Path(self.root, name)

    def _name(self, path: str) -> str:
        return path.removeprefix(self.root).lstrip("/")


def make_root(root: str) -> None:
    """Make the folder of a storage, durably, if it is not there."""
    path = Path(root)
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        sync(path.parent)


def _files(folder: str, follow: bool = True) -> Iterator["os.DirEntry[str]"]:
    """All files below a folder; one whose folder was deleted meanwhile is none.

    A folder directly in it may be a link to one on another disk. Raises `OSError` for what cannot be
    listed: a checkpoint must not be overlooked for that.
    """
    try:
        with os.scandir(folder) as listed:
            found = list(listed)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in found:
        if _is_folder(entry, follow):
            yield from _files(entry.path, follow=False)
        else:
            yield entry


def _is_folder(entry: "os.DirEntry[str]", follow: bool) -> bool:
    with suppress(OSError):  # a link that leads nowhere
        return entry.is_dir(follow_symlinks=follow)
    return False


def _seen(file: "os.DirEntry[str]") -> Entry | None:
    """What a listing tells of a file; nothing of one that is gone, and no size of a link to nowhere."""
    with suppress(OSError):
        found = file.stat()
        return Entry(found.st_size, found.st_mtime)
    return Entry(0, 0.0) if file.is_symlink() else None


def _link(hidden: Path, path: Path) -> None:
    try:
        os.link(hidden, path)
    except FileExistsError:
        # A server that answers a repeated request may refuse what it has just done.
        if hidden.stat().st_nlink != 2:
            raise


def _is_hidden(name: str) -> bool:
    return name.rsplit("/", 1)[-1].startswith(".")
