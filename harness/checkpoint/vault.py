"""The files of one run's storage, whatever kind it is.

Nothing half written is seen, and no call lasts for ever.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from harness.checkpoint.address import EXTRAS, StoreError, check, protocol_of, spelled_out
from harness.checkpoint.files import Outgoing, Sink, SourceError, read_through
from harness.checkpoint.local import LocalObjects, make_root
from harness.checkpoint.manifest import FileRecord
from harness.checkpoint.objects import Entry, Objects
from harness.checkpoint.patience import Call, Limits, Patience
from harness.checkpoint.remote import RemoteObjects

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Vault:
    """Names are relative to the root. Safe to use from several processes and threads."""

    files: fsspec.AbstractFileSystem
    root: str
    run_id: str
    shard_bytes: int = 2_000_000_000
    timeout_s: float = 60.0
    """How long a call may take, beside what it has for its bytes."""

    def make(self) -> None:
        """Make the folder, where the storage is one."""
        if isinstance(self.files, LocalFileSystem):
            make_root(self.root)

    def path(self, *names: str) -> str:
        """A path as the file system takes it."""
        return "/".join((self.root, *filter(None, names)))

    def inventory(self) -> Mapping[str, int]:
        """Every file, by its name relative to the root, with its size: one listing, never an old one."""
        return {name: entry.size_bytes for name, entry in self.listing().items()}

    def listing(self, under: str = "") -> Mapping[str, Entry]:
        """The same, with times; below one folder alone where that is named."""
        return self._call(f"list {under}", lambda objects, _: objects.listing(under))

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> FileRecord:
        """Write a file and make it durable; under its name nothing is seen before it is whole.

        Each chunk must stay as it is until this returns.
        """
        outgoing = Outgoing(chunks)
        self._put(name, outgoing, fresh=False)
        return outgoing.record()

    def create(self, name: str, data: bytes) -> bool:
        """Write a file whole, durably, and only if it is not there; False if it is.

        If this very content is there, it counts as ours: what must tell its writer has a nonce.
        """
        try:
            self._put(name, Outgoing([data]), fresh=True)
        except FileExistsError:
            # The answer to our own first request may have been lost on its way.
            return self.read(name) == data
        return True

    def delete(self, name: str) -> None:
        """Take a file away. Where it is not there: nothing, or `FileNotFoundError`."""
        self._call(f"delete {name}", lambda objects, _: objects.delete(name))

    def read(self, name: str) -> bytes:
        """A small file, whole."""

        def act(objects: Objects, _: Call[bytes]) -> bytes:
            with objects.open(name) as file:
                return bytes(file.read())

        return self._call(f"read {name}", act)

    def pour(self, name: str, size: int, sink: Sink | None = None) -> FileRecord:
        """Read a file that should have `size` bytes; its size and checksum as they were found.

        `sink` gets each portion and where in the file it begins; in order, but after a fault in the
        middle possibly from the start again. A file that is too long counts one byte too many.
        """

        def act(objects: Objects, call: Call[FileRecord]) -> FileRecord:
            def pass_on(begin: int, portion: memoryview) -> None:
                call.moved(len(portion))
                if sink is not None:
                    sink(begin, portion)

            with objects.open(name) as file:
                return read_through(file, size, pass_on)

        return self._call(f"read {name}", act)

    def size(self, name: str) -> int | None:
        """Bytes of a file, or None where it is missing."""
        entry = self.listing(name.rpartition("/")[0]).get(name)
        return None if entry is None else entry.size_bytes

    def sweep(self, is_dead: Callable[[str, float], bool]) -> None:
        """Take away what was begun and never became a file; see `Objects`."""
        self._call("sweep", lambda objects, _: objects.sweep(is_dead))

    def _put(self, name: str, outgoing: Outgoing, *, fresh: bool) -> None:
        def act(objects: Objects, call: Call[None]) -> None:
            objects.put(name, outgoing.portions(call.moved), fresh=fresh)

        try:
            self._call(f"write {name}", act)
        except SourceError as failure:
            raise failure.error from None

    def _call(self, what: str, act: Callable[[Objects, Call[Result]], Result]) -> Result:
        patience = Patience(Limits(self.timeout_s))
        objects: Objects
        if isinstance(self.files, LocalFileSystem):
            objects = LocalObjects(self.files, self.root)
        else:
            objects = RemoteObjects(self.files, self.root, self.shard_bytes, patience)
        return patience.call(what, lambda call: act(objects, call))


def locate(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system and the path that `url` names. Raises `StoreError`."""
    check(url)
    url = spelled_out(url)
    protocol = protocol_of(url)
    # Told to the storage itself, below what is wrapped around it: a listing must never be an old one.
    options = {protocol: {"use_listings_cache": False}} if protocol in EXTRAS else {}
    try:
        if protocol:
            fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise StoreError(
            f"checkpoints at {url!r} need a package that is not installed{_way(protocol)}: {error}"
        ) from error
    except ValueError:
        raise StoreError(
            f"checkpoints at {url!r}: fsspec knows no storage {protocol}://; one that comes in a"
            " package of its own is known once that is installed; file://, s3://, gs:// and abfs://"
            " always are"
        ) from None
    try:
        files, root = url_to_fs(url, **options)
    except (ValueError, OSError) as error:
        raise StoreError(f"checkpoints at {url!r} cannot be opened: {error}") from error
    except Exception as error:  # whatever a file system's own package raises
        why = f"{type(error).__name__}: {error}"
        raise StoreError(f"checkpoints at {url!r} cannot be opened: {why}") from error
    return files, str(root).rstrip("/") or "/"


def _way(protocol: str) -> str:
    extra = EXTRAS.get(protocol)
    return "" if extra is None else f" (pip install 'resilience-harness[{extra}]')"
