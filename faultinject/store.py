"""`chaos::` over any storage that fsspec knows: the same storage, spoilt by the plan of an armed run.

It opens in a process of an armed run and nowhere else, so a copied configuration cannot do harm.
"""

import errno
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.chained import ChainedFileSystem
from fsspec.implementations.local import LocalFileSystem

from faultinject.history import History
from faultinject.rules import Kind, Operation
from faultinject.spoiling import Hit, armed_spoiler
from faultinject.stream import Beside, SpoiltFile
from harness.checkpoint.tour import files_below
from harness.rundir import RunDir


class ChaosFileSystem(ChainedFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Another file system, `fs`, whose calls go wrong as the run's plan says.

    Raises `PermissionError` where the process belongs to no armed run.
    """

    protocol = "chaos"
    cachable = False
    """What it may do hangs on the environment."""

    def __init__(
        self,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        fo: str = "",
        **options: Any,
    ) -> None:
        if target_protocol is None:
            raise ValueError(
                "chaos:: spoils another storage: name it, as in chaos::file:///some/path"
            )
        self._spoiler = armed_spoiler()
        super().__init__()
        self.fs = fsspec.filesystem(target_protocol, **{**options, **(target_options or {})})
        """The storage as it is."""
        self._root = self.fs._strip_protocol(fo).rstrip("/")
        self._is_local = isinstance(self.fs, LocalFileSystem)
        stale = any(rule.kind is Kind.STALE for rule in self._spoiler.tape.storage)
        run_dir = RunDir.at(os.environ["HARNESS_RUN_DIR"])
        self._history = History(run_dir.storage_history) if stale else None

    def _hits(self, operation: Operation, path: str) -> list[Hit]:
        """How a call is spoilt."""
        return self._spoiler.hits(operation, self._name(path))

    def _struck(self, operation: Operation, path: str) -> list[Hit]:
        """The same, with all that fails or waits done. Raises `OSError`."""
        hits = self._hits(operation, path)
        for hit in hits:
            hit.strike()
        return hits

    def _name(self, path: str) -> str:
        """`path` below the root of the storage."""
        return str(self._strip_protocol(path)).removeprefix(self._root).strip("/")

    # ── whole files ─────────────────────────────────────────────────────────────────────────

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        """See `AbstractFileSystem`."""
        hits = self._struck(Operation.READ, path)
        data = bytes(self.fs.cat_file(path, start=start, end=end, **options))
        for hit in hits:
            if hit.rule.kind is Kind.BIT_FLIP:
                data = hit.flipped(data)
            if hit.rule.kind is Kind.TRUNCATE:
                data = data[: len(data) // 2]
        return data

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        """See `AbstractFileSystem`; `create` is one step on a local disk too."""
        creates = mode == "create"
        hits = self._struck(Operation.CREATE if creates else Operation.WRITE, path)
        data = bytes(value)
        for hit in hits:
            if hit.rule.kind is Kind.ENOSPC:
                _, full = hit.take(len(data))
                if full is not None:
                    raise full.error(errno.ENOSPC, "no space left on device")
            if hit.rule.kind is Kind.BIT_FLIP:
                data = hit.flipped(data)
            if hit.rule.kind is Kind.SHORT_WRITE:
                data = data[: len(data) // 2]
        if self._is_local:
            _put(Path(path), data, creates)
        else:
            self.fs.pipe_file(path, data, mode=mode, **options)
        self._came(path, len(data))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> SpoiltFile:
        """See `AbstractFileSystem`."""
        writes = mode != "rb"
        if mode not in ("rb", "wb"):
            raise ValueError(f"chaos:: opens files as 'rb' or 'wb', not as {mode!r}")
        hits = self._hits(Operation.WRITE if writes else Operation.READ, path)
        if writes and self._is_local:
            inner: Any = Beside(path)
        else:
            inner = self.fs.open(path, mode, **options)
        return SpoiltFile(inner, hits, lambda size: self._came(path, size))

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        """See `AbstractFileSystem`."""
        self._struck(Operation.WRITE, path2)
        self.fs.mv(path1, path2, **options)
        self._went(path1)
        self._came(path2, 0)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        """See `AbstractFileSystem`."""
        self._struck(Operation.WRITE, path2)
        self.fs.cp_file(path1, path2, **options)
        self._came(path2, 0)

    # ── names ───────────────────────────────────────────────────────────────────────────────

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """See `AbstractFileSystem`."""
        hits = self._struck(Operation.LIST, path)
        listed = self._as_told(path, hits, self.fs.ls(path, detail=True, **options), deep=False)
        return listed if detail else [entry["name"] for entry in listed]

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, **options: Any
    ) -> Any:
        """See `AbstractFileSystem`."""
        detail = options.pop("detail", False)
        hits = self._struck(Operation.LIST, path)
        if maxdepth is None and not withdirs and not options:
            found = files_below(self.fs, path)
        else:
            found = self.fs.find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True, **options)
        listed = self._as_told(path, hits, list(found.values()), deep=True)
        return {it["name"]: it for it in listed} if detail else [it["name"] for it in listed]

    def _as_told(self, path: str, hits: Sequence[Hit], listed: list[Any], deep: bool) -> list[Any]:
        """What a listing shows, where it may be an old one."""
        folder = str(self._strip_protocol(path)).rstrip("/")
        for hit in hits:
            if hit.rule.kind is Kind.STALE and self._history is not None:
                listed = self._history.stale(folder, listed, hit.rule.seconds, deep)
        return listed

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """See `AbstractFileSystem`."""
        self._struck(Operation.LOOK, path)
        found: dict[str, Any] = self.fs.info(path, **options)
        return found

    def exists(self, path: str, **options: Any) -> bool:
        """See `AbstractFileSystem`."""
        self._struck(Operation.LOOK, path)
        return bool(self.fs.exists(path, **options))

    def rm_file(self, path: str) -> None:
        """See `AbstractFileSystem`."""
        self._struck(Operation.DELETE, path)
        self.fs.rm_file(path)
        self._went(path)

    def rm(
        self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None
    ) -> None:
        """See `AbstractFileSystem`."""
        paths = [path] if isinstance(path, str) else path
        for one in paths:
            self._struck(Operation.DELETE, one)
        self.fs.rm(path, recursive=recursive, maxdepth=maxdepth)
        for one in paths:
            self._went(one)

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """See `AbstractFileSystem`."""
        self.fs.mkdir(path, create_parents=create_parents, **options)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """See `AbstractFileSystem`."""
        self.fs.makedirs(path, exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        """See `AbstractFileSystem`."""
        self.fs.rmdir(path)

    def created(self, path: str) -> Any:
        """See `AbstractFileSystem`."""
        return self.fs.created(path)

    def modified(self, path: str) -> Any:
        """See `AbstractFileSystem`."""
        return self.fs.modified(path)

    def invalidate_cache(self, path: str | None = None) -> None:
        """See `AbstractFileSystem`."""
        self.fs.invalidate_cache(path)

    def _came(self, path: str, size: int) -> None:
        if self._history is not None:
            self._history.created(str(self._strip_protocol(path)), size)

    def _went(self, path: str) -> None:
        if self._history is not None:
            self._history.deleted(str(self._strip_protocol(path)))


def _put(path: Path, data: bytes, creates: bool) -> None:
    """Write a local file whole. Raises `FileExistsError` if it is to be created and is there."""
    if not creates:
        with Beside(str(path)) as file:
            file.write(data)
        return
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
