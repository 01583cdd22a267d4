"""Storage through fsspec: S3, Google's, Azure's, others that the probe finds honest, and wrappers.

An object appears when its upload is completed, so whatever goes wrong before leaves nothing; an upload
that was not completed is taken back, and one whose writer was killed is swept.
"""

import errno
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from harness.checkpoint.address import EXTRAS
from harness.checkpoint.local import LocalObjects
from harness.checkpoint.objects import Entry
from harness.checkpoint.patience import Patience
from harness.checkpoint.ranges import Ranges

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
        with _told(path):
            size = int(self.files.info(path)["size"])
        return Ranges(lambda begin, end: self._range(path, begin, end), size)

    def listing(self, under: str = "") -> Mapping[str, Entry]:
        """See `Objects`. Whatever a file system remembers of earlier listings is forgotten first."""
        try:
            with _told(under):
                self.files.invalidate_cache()
                found = self.files.find(self._path(under), detail=True)
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
        with _told(name):
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
        with _told(self.root):
            for upload in list(_uploads(store, self._path(""))):
                bucket, _, prefix = self._path("").partition("/")
                age_s = time.time() - upload["Initiated"].timestamp()
                if is_dead(upload["Key"].removeprefix(prefix), age_s):
                    _abort(store, bucket, upload)

    # ── requests, each of which may fail in a way of its library's own ─────────────────────────

    def _pipe(self, name: str, data: bytes, fresh: bool) -> None:
        path = self._path(name)
        self._make_folder(path)
        with _told(path):
            self.files.pipe_file(path, data, **({"mode": "create"} if fresh else {}))

    def _stream(self, name: str, chunks: Iterator[memoryview], part_bytes: int) -> None:
        path = self._path(name)
        self._make_folder(path)
        with _told(path):
            file = self.files.open(path, "wb", block_size=part_bytes)
        try:
            for chunk in chunks:
                with _told(path):
                    file.write(chunk)
            with _told(path):
                file.close()
        except BaseException:
            _discard(file)
            raise

    def _range(self, path: str, begin: int, end: int) -> bytes:
        def once() -> bytes:
            with _told(path):
                data = bytes(self.files.cat_file(path, start=begin, end=end))
            if len(data) != end - begin:
                asked = f"{len(data)} bytes where {end - begin} were asked for"
                raise OSError(errno.EIO, asked, path)
            return data

        return self.patience.retried(once)

    def _make_folder(self, path: str) -> None:
        """Object stores need none; others may."""
        if EXTRAS.keys().isdisjoint(_protocols(innermost(self.files))):
            with _told(path), suppress(NotImplementedError):
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


def _uploads(store: Any, root: str) -> Iterator[dict[str, Any]]:
    """The uploads under a path that were never completed."""
    bucket, _, prefix = root.partition("/")
    marker: dict[str, str] = {}
    while True:
        page = store.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **marker)
        yield from page.get("Uploads", ())
        if not page.get("IsTruncated"):
            return
        marker = {
            "KeyMarker": page["NextKeyMarker"],
            "UploadIdMarker": page["NextUploadIdMarker"],
        }


def _abort(store: Any, bucket: str, upload: Mapping[str, Any]) -> None:
    with suppress(FileNotFoundError):  # it ended meanwhile
        key, number = upload["Key"], upload["UploadId"]
        store.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=number)


@contextmanager
def _told(path: str) -> Iterator[None]:
    """Whatever the libraries below raise becomes an `OSError` that says what kind it is."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, error.strerror or str(error), path) from error
    except OSError:
        raise
    except Exception as error:
        raise _as_os_error(error, path) from error


def _as_os_error(error: Exception, path: str) -> OSError:
    status = _status(error)
    what = f"{type(error).__name__}: {error}"
    if status in (404, 410):
        return FileNotFoundError(errno.ENOENT, what, path)
    if status in (401, 403):
        return PermissionError(errno.EACCES, what, path)
    if isinstance(error, NotImplementedError | TypeError | AttributeError):
        return OSError(errno.ENOSYS, what, path)
    passing = status is None or status in (408, 429) or status >= 500
    return OSError(errno.EREMOTEIO if passing else errno.EINVAL, what, path)


def _status(error: BaseException | None) -> int | None:
    """The HTTP status behind an error, if there is one."""
    while error is not None:
        for name in ("status_code", "status", "code"):
            if isinstance(value := getattr(error, name, None), int) and 100 <= value < 600:
                return value
        error = error.__cause__
    return None
