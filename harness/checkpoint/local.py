"""Files of one machine, or of a file system that is mounted: what fsspec cannot promise is promised here.

A file is written under a hidden name, made durable, and only then gets its own. A new one gets it by a
hard link, which replaces nothing.
"""

import errno
import os
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
        """See `Objects`."""
        found: dict[str, dict[str, Any]]
        found = self.files.find(str(self._path(under)), detail=True)
        return {
            name: Entry(int(info["size"]), float(info["mtime"]))
            for name, info in ((self._name(path), info) for path, info in found.items())
            if not _is_hidden(name)
        }

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
        for path in self._hidden():
            with suppress(FileNotFoundError):  # its writer was quicker
                visible = self._name(str(path.with_name(path.name[1:].rsplit(".", 1)[0])))
                if is_dead(visible, now_s - path.stat().st_mtime):
                    path.unlink()
        for folder in self._empty():
            if is_dead(f"{folder.name}/", now_s - folder.stat().st_mtime):
                self._drop_folder(folder)

    def _hidden(self) -> Iterator[Path]:
        return (path for path in Path(self.root).rglob(".*") if path.is_file())

    def _empty(self) -> list[Path]:
        folders = (path for path in Path(self.root).iterdir() if path.is_dir())
        return [folder for folder in folders if not any(folder.iterdir())]

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


def _link(hidden: Path, path: Path) -> None:
    try:
        os.link(hidden, path)
    except FileExistsError:
        # A server that answers a repeated request may refuse what it has just done.
        if hidden.stat().st_nlink != 2:
            raise


def _is_hidden(name: str) -> bool:
    return name.rsplit("/", 1)[-1].startswith(".")
