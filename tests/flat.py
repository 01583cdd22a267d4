"""A file system that this project has never met: flat names over a folder, and kinds of it that cheat.

It has no folders, no renaming and no descriptors. `flat_url` makes it known as a package of its own would.
"""

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import fsspec
import pytest
from fsspec.spec import AbstractBufferedFile

ROOT = Path(__file__).parents[1]


class Flat(fsspec.AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Each object is one file in `folder`, whatever slashes its name has."""

    protocol: Any = "flat"
    ends_at_name = False
    """Whether bytes go to the final name as they come."""

    def __init__(self, folder: str, **options: Any) -> None:
        super().__init__(folder=folder, **options)
        self.folder = Path(folder)

    def file(self, path: str) -> Path:
        """Where an object lies."""
        return self.folder / quote(str(self._strip_protocol(path)), safe="")

    def beside(self) -> Path:
        """Where one lies that has no name yet."""
        return self.folder / f"unnamed%%{uuid.uuid4().hex}"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        unnamed = self.beside()
        try:
            unnamed.write_bytes(value)
            if mode == "create":
                os.link(unnamed, self.file(path))
            else:
                unnamed.replace(self.file(path))
        finally:
            unnamed.unlink(missing_ok=True)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> "FlatFile":
        return FlatFile(self, path, mode, block_size=options.get("block_size") or 1 << 20)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        found = self.file(path).stat()
        return {"name": path, "size": found.st_size, "type": "file", "mtime": found.st_mtime}

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        prefix = f"{self._strip_protocol(path)}/"
        found: dict[str, dict[str, Any]] = {}
        for file in self.folder.iterdir():
            name = unquote(file.name)
            if name.startswith(prefix):
                first, slash, _ = name.removeprefix(prefix).partition("/")
                folder = {"name": prefix + first, "size": 0, "type": "directory"}
                found[first] = folder if slash else self.info(name)
        if not found:
            raise FileNotFoundError(path)
        return list(found.values()) if detail else [it["name"] for it in found.values()]

    def rm_file(self, path: str) -> None:
        self.file(path).unlink()

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        raise NotImplementedError

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        raise NotImplementedError

    cp_file = mv


class FlatFile(AbstractBufferedFile):  # type: ignore[misc]
    """Gets its name when it is closed."""

    def _initiate_upload(self) -> None:
        target = self.fs.file(self.path)
        self.unnamed = target if self.fs.ends_at_name else self.fs.beside()

    def _upload_chunk(self, final: bool = False) -> None:
        with self.unnamed.open("ab") as file:
            file.write(self.buffer.getvalue())
        if final:
            self.unnamed.replace(self.fs.file(self.path))

    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self.fs.file(self.path).read_bytes()[start:end])

    def discard(self) -> None:
        if self.offset is not None and not self.fs.ends_at_name:
            self.unnamed.unlink()


class Overwriting(Flat):
    """Takes no notice of `mode`."""

    protocol = "overwriting"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        super().pipe_file(path, value)


class Stale(Flat):
    """Lists each folder once, and never again."""

    protocol = "stale"

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        if path not in self.dircache:
            self.dircache[path] = super().ls(path, detail=True)
        listed: list[Any] = self.dircache[path]
        return listed if detail else [it["name"] for it in listed]

    def __init__(self, folder: str, **options: Any) -> None:
        super().__init__(folder, **options)
        self.dircache: dict[str, list[Any]] = {}


class Early(Flat):
    """Shows an object from its first byte on."""

    protocol = "early"
    ends_at_name = True


class TwoSteps(Flat):
    """Leaves the creation of files to fsspec, which looks and then writes."""

    protocol = "twosteps"
    pipe_file = fsspec.AbstractFileSystem.pipe_file


KINDS = (Flat, Overwriting, Stale, Early, TwoSteps)


def _install(site: Path) -> None:
    """What installing a package of these kinds leaves."""
    info = site / "flat-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flat\nVersion: 1\n")
    lines = [f"{kind.protocol} = tests.flat:{kind.__name__}" for kind in KINDS]
    (info / "entry_points.txt").write_text("\n".join(["[fsspec.specs]", *lines, ""]))


@pytest.fixture
def flat_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Gives a URL of a kind under which there is nothing yet; child processes know it as well."""
    _install(tmp_path / "site")
    path = [str(tmp_path / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))

    def url(protocol: str) -> str:
        folder = tmp_path / "objects"
        folder.mkdir(exist_ok=True)
        for kind in KINDS:
            fsspec.register_implementation(str(kind.protocol), kind, clobber=True)
        monkeypatch.setenv(f"FSSPEC_{protocol.upper()}_FOLDER", str(folder))
        monkeypatch.setitem(fsspec.config.conf, protocol, {"folder": str(folder)})
        return f"{protocol}://place/run"

    return url
