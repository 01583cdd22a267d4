"""Storage through fsspec: S3, Google's, Azure's, others that the probe finds honest, and wrappers.

An object appears when its upload is completed, so whatever goes wrong before leaves nothing; an upload
that was not completed is taken back, and one whose writer was killed is swept.
"""

import errno
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from harness.checkpoint.address import EXTRAS
from harness.checkpoint.failures import told
from harness.checkpoint.local import LocalObjects
from harness.checkpoint.objects import Entry
from harness.checkpoint.patience import Patience
from harness.checkpoint.ranges import Ranges
from harness.checkpoint.tour import files_below
from harness.checkpoint.uploads import PARTS_AT_ONCE, abort, cut, unfinished, upload

_PART_BYTES = 16 << 20
_MOST_PARTS = 10_000
_WRITTEN = ("mtime", "LastModified", "updated", "last_modified", "created")
"""What local files, S3, Google's, Azure's storage and fsspec's memory call the time of writing."""


@dataclass(frozen=True, slots=True)
class RemoteObjects:
    """See `Objects`."""

    files: fsspec.AbstractFileSystem
    root: str
    largest_bytes: int
    """No object is much larger, so that its parts can be made to suffice."""
    patience: Patience
    """For each range that is read; one that fails must not cost the whole object."""

    def put(self, name: str, chunks: Iterable[memoryview], *, fresh: bool = False) -> None:
        """See `Objects`; what fits into one part is one request."""
        size = part_bytes(self.largest_bytes)
        # An object of fsspec's memory is seen from its first byte on.
        if fresh or isinstance(innermost(self.files), MemoryFileSystem):
            self._pipe(name, b"".join(chunks), fresh)
            return
        coming = iter(chunks)
        held: list[memoryview] = []
        for chunk in coming:
            held.append(chunk)
            if sum(map(len, held)) >= size:
                self._stream(name, chain(held, coming), size)
                return
        self._pipe(name, b"".join(held), fresh)

    def open(self, name: str) -> AbstractContextManager[Any]:
        """See `Objects`."""
        path = self._path(name)
        with told(path):
            size = int(self.files.info(path)["size"])
        return Ranges(lambda begin, end: self._range(path, begin, end), size)

    def listing(self, under: str = "") -> Mapping[str, Entry]:
        """See `Objects`. Whatever a file system remembers of earlier listings is forgotten first."""
        try:
            with told(under):
                self.files.invalidate_cache()
                found = files_below(self.files, self._path(under))
                named = ((path.removeprefix(self._path("")), info) for path, info in found.items())
                return {
                    name: Entry(int(info["size"]), _written_s(info))
                    for name, info in named
                    if info["type"] == "file" and not name.endswith("/") and "/." not in f"/{name}"
                }
        except FileNotFoundError:
            return {}

    def delete(self, name: str) -> None:
        """See `Objects`."""
        with told(name):
            self.files.rm_file(self._path(name))

    def sweep(self, is_dead: Callable[[str, float], bool]) -> None:
        """See `Objects`.

        S3 keeps (and charges for) what was uploaded until someone aborts it. Google's and Azure's
        storage list nothing of the kind and drop it after a week.
        """
        store = innermost(self.files)
        if isinstance(store, LocalFileSystem):  # under a wrapper, which hides names as we do
            LocalObjects(store, self.root).sweep(is_dead)
        if not hasattr(store, "call_s3"):
            return
        with told(self.root):
            for begun in list(unfinished(store, self._path(""))):
                bucket, _, prefix = self._path("").partition("/")
                age_s = time.time() - begun["Initiated"].timestamp()
                if is_dead(begun["Key"].removeprefix(prefix), age_s):
                    abort(store, bucket, begun)

    # ── requests, each of which may fail in a way of its library's own ─────────────────────────

    def _pipe(self, name: str, data: bytes, fresh: bool) -> None:
        path = self._path(name)
        self._make_folder(path)
        with told(path):
            self.files.pipe_file(path, data, **({"mode": "create"} if fresh else {}))

    def _stream(self, name: str, chunks: Iterable[memoryview], part_bytes: int) -> None:
        path = self._path(name)
        if hasattr(self.files, "call_s3"):
            upload(self.files, path, chunks, part_bytes)
            return
        self._make_folder(path)
        if "abfs" in _protocols(self.files):  # it sends the parts of what it is given at once
            chunks = map(memoryview, cut(chunks, PARTS_AT_ONCE * part_bytes))
        with told(path):
            file = self.files.open(path, "wb", block_size=part_bytes)
        try:
            for chunk in chunks:
                with told(path):
                    file.write(chunk)
            with told(path):
                file.close()
        except BaseException:
            _discard(file)
            raise

    def _range(self, path: str, begin: int, end: int) -> bytes:
        def once() -> bytes:
            with told(path):
                data = bytes(self.files.cat_file(path, start=begin, end=end))
            if len(data) != end - begin:
                asked = f"{len(data)} bytes where {end - begin} were asked for"
                raise OSError(errno.EIO, asked, path)
            return data

        return self.patience.retried(once)

    def _make_folder(self, path: str) -> None:
        """Object stores need none; others may."""
        if EXTRAS.keys().isdisjoint(_protocols(innermost(self.files))):
            with told(path), suppress(NotImplementedError):
                self.files.makedirs(path.rsplit("/", 1)[0], exist_ok=True)

    def _path(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}"


def innermost(files: fsspec.AbstractFileSystem) -> fsspec.AbstractFileSystem:
    """The storage itself, below what is wrapped around it."""
    while isinstance(inner := getattr(files, "fs", None), fsspec.AbstractFileSystem):
        files = inner
    return files


def is_tried(files: fsspec.AbstractFileSystem) -> bool:
    """True for a kind of storage that the tests try out on a real one, also where faults go in it."""
    while "chaos" in _protocols(files):
        files = files.fs
    return isinstance(files, LocalFileSystem) or not EXTRAS.keys().isdisjoint(_protocols(files))


def _protocols(files: fsspec.AbstractFileSystem) -> tuple[str, ...]:
    protocol = type(files).protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def creates_in_one_step(files: fsspec.AbstractFileSystem) -> bool:
    """False where fsspec makes do with a look whether the file is there, and a write after it."""
    kind = type(files)
    if isinstance(files, AsyncFileSystem):
        return kind._pipe_file is not AsyncFileSystem._pipe_file
    return kind.pipe_file is not fsspec.AbstractFileSystem.pipe_file


def part_bytes(largest_bytes: int) -> int:
    """Twice what an object of that size needs, in whole MiB (Google wants multiples of 256 KiB)."""
    needed = -(-2 * largest_bytes // _MOST_PARTS)
    return max(_PART_BYTES, -(-needed // (1 << 20)) << 20)


def _discard(file: Any) -> None:
    """Take back an upload, and see to it that forgetting the file does not complete it."""
    with suppress(Exception):
        file.discard()
    with suppress(AttributeError):  # a wrapper that sees to that itself
        file.closed = True


def _written_s(info: Mapping[str, Any]) -> float:
    written = next((info[key] for key in _WRITTEN if info.get(key) is not None), 0.0)
    if isinstance(written, str):
        written = datetime.fromisoformat(written)
    if isinstance(written, datetime):
        return (written if written.tzinfo else written.replace(tzinfo=UTC)).timestamp()
    return float(written)
