"""Where the checkpoints of one run are kept; the only module that touches their storage.

Everything goes through fsspec, except the two promises that it cannot make: files.py keeps those.
"""

import errno
import os
import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import Any

import fsspec
from fsspec.core import split_protocol, url_to_fs

from harness.checkpoint.files import Sink, create_file, read_through, sync_directory, write_through
from harness.checkpoint.lineage import Chain, Departure, chain
from harness.checkpoint.manifest import COMMIT, FileRecord, Place
from harness.checkpoint.seal import sealed, unsealed

SCHEMA = 1
_REMOVALS = 10
_CLAIM = re.compile(r"(\d{5,})\.claim")
_DEPARTURE = re.compile(r"(\d{5,})\.json")
_RUN, _ATTEMPTS = "run.json", "attempts"


class StoreError(ValueError):
    """The storage is not one that this run can use."""


@dataclass(frozen=True, slots=True)
class Store:
    """The storage of one run's checkpoints. Safe to use from several processes and threads."""

    files: fsspec.AbstractFileSystem
    root: str
    run_id: str
    shard_bytes: int

    @classmethod
    def open(cls, url: str, run_id: str, shard_bytes: int = 2_000_000_000) -> "Store":
        """The storage at `url`, made if it is not there.

        Raises `StoreError` for a kind of storage that cannot hold checkpoints, and for one that
        holds another run's.
        """
        store = cls(*_located(url), run_id, shard_bytes)
        store.adopt()
        return store

    @classmethod
    def existing(cls, url: str, shard_bytes: int = 2_000_000_000) -> "Store":
        """The storage at `url`, of whichever run it is; nothing is written.

        Raises `StoreError` where no run keeps its checkpoints.
        """
        store = cls(*_located(url), "", shard_bytes)
        try:
            return replace(store, run_id=store._fields(_RUN, run_id=str)["run_id"])
        except FileNotFoundError:
            raise StoreError(
                f"no run keeps its checkpoints in {store.root}: there is no {_RUN}"
            ) from None

    def adopt(self) -> None:
        """Mark the storage as this run's. Raises `StoreError` if it is another's."""
        self.files.makedirs(self.path(_ATTEMPTS), exist_ok=True)
        if self.create(_RUN, sealed({"schema": SCHEMA, "run_id": self.run_id})):
            sync_directory(Path(self.root).parent)
        owner = self._fields(_RUN, run_id=str)["run_id"]
        if owner != self.run_id:
            raise StoreError(
                f"{self.root} holds the checkpoints of run {owner!r}, and this is run"
                f" {self.run_id!r}: give each run a place of its own"
            )

    # ── attempts and their lineage ──────────────────────────────────────────────────────────

    def newest_attempt(self) -> int:
        """The highest number that an attempt claimed or chose its state under; 0 before the first."""
        return max([*self._numbers(_CLAIM), *self._numbers(_DEPARTURE)], default=0)

    def claim_attempt(self, above: int = 0) -> int:
        """The next attempt's number, which no one else has or ever gets; the first is 1.

        It is higher than `above`: a script may move its checkpoints after an attempt was claimed.
        """
        number = max(above, self.newest_attempt()) + 1
        while not self.create(f"{_ATTEMPTS}/{number:05d}.claim", self._claim(number)):
            number += 1
        return number

    def _claim(self, attempt: int) -> bytes:
        who = {"host": socket.gethostname(), "pid": os.getpid()}
        return sealed({"schema": SCHEMA, "run_id": self.run_id, "attempt": attempt, **who})

    def record_lineage(self, attempt: int, parent: int | None, step: int) -> None:
        """Write down, once, what `attempt` resumed from. Raises `StoreError` the second time."""
        fields = {"attempt": attempt, "parent": parent, "step": step}
        path = f"{_ATTEMPTS}/{attempt:05d}.json"
        if not self.create(path, sealed({"schema": SCHEMA, "run_id": self.run_id, **fields})):
            raise StoreError(
                f"attempt {attempt} has chosen its state already ({path} exists):"
                " every start claims an attempt number of its own"
            )

    def departures(self) -> dict[int, Departure]:
        """Where each attempt that has chosen began."""
        found: dict[int, Departure] = {}
        for attempt in self._numbers(_DEPARTURE):
            record = f"{_ATTEMPTS}/{attempt:05d}.json"
            fields = self._fields(record, attempt=int, parent=int | None, step=int)
            if fields["attempt"] != attempt:
                raise self._damaged(record, f"it is that of attempt {fields['attempt']}")
            found[attempt] = Departure(fields["parent"], fields["step"])
        return found

    def chain(self) -> Chain:
        """The attempts that count now. Raises `StoreError` where their records cannot all be true."""
        departures = self.departures()
        try:
            return chain(departures)
        except ValueError as error:
            raise StoreError(f"{self.path(_ATTEMPTS)}: {error}") from None

    def _numbers(self, form: re.Pattern[str]) -> list[int]:
        matches = (form.fullmatch(name) for name in self._names(_ATTEMPTS))
        return sorted(int(match.group(1)) for match in matches if match is not None)

    # ── checkpoints ─────────────────────────────────────────────────────────────────────────

    def places(self) -> list[Place]:
        """Every directory of a save, committed or not, oldest step first."""
        places = (Place.parse(name) for name in self._names(""))
        return sorted(place for place in places if place is not None)

    def is_committed(self, place: Place) -> bool:
        """True once the commit is there; what it says is another question."""
        return bool(self.files.exists(self.path(place.name, COMMIT)))

    def begin(self, place: Place) -> None:
        """Make the directory of a new save. Raises `FileExistsError` if it was ever used."""
        self.files.mkdir(self.path(place.name), create_parents=False)

    def remove(self, place: Place) -> None:
        """Delete a save: the commit first, so that no one trusts what is half gone.

        Again and again if need be, since another rank may open its file in the middle of it.
        """
        with suppress(FileNotFoundError):
            self.files.rm_file(self.path(place.name, COMMIT))
            self.sync(place.name)
        for _ in range(_REMOVALS):
            try:
                self.files.rm(self.path(place.name), recursive=True)
            except FileNotFoundError:
                if not self.files.exists(self.path(place.name)):
                    return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
            else:
                return
        raise OSError(errno.ENOTEMPTY, "others keep writing into it", place.name)

    # ── files ───────────────────────────────────────────────────────────────────────────────

    def path(self, *names: str) -> str:
        """A path as the file system takes it."""
        return "/".join((self.root, *filter(None, names)))

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> FileRecord:
        """Write a file and make its content durable (not yet its name: `sync`)."""
        with self.files.open(self.path(name), "wb") as file:
            return write_through(file, chunks)

    def read(self, name: str) -> bytes:
        """A small file, whole."""
        return bytes(self.files.cat_file(self.path(name)))

    def pour(self, name: str, size: int, sink: Sink | None = None) -> FileRecord:
        """Read a file that should have `size` bytes; its size and checksum as they were found.

        `sink` gets each portion and where in the file it begins; in order, but after a fault in the
        middle possibly from the start again. A file that is too long counts one byte too many.
        """
        with self.files.open(self.path(name), "rb") as file:
            return read_through(file, size, sink)

    def size(self, name: str) -> int | None:
        """Bytes of a file, or None where it is missing."""
        try:
            return int(self.files.size(self.path(name)))
        except FileNotFoundError:
            return None

    def inventory(self) -> dict[str, int]:
        """Every file of the storage by name, with its size."""
        found = self.files.find(self.root, detail=True)
        return {
            str(path).removeprefix(f"{self.root}/"): int(info["size"])
            for path, info in found.items()
        }

    def modified(self, name: str) -> datetime | None:
        """When a file was written, or None where the storage does not say."""
        try:
            at: datetime = self.files.modified(self.path(name))
        except (NotImplementedError, FileNotFoundError):
            return None
        return at if at.tzinfo is not None else at.replace(tzinfo=UTC)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file whole, durably, and only if it is not there; False if it is."""
        return create_file(Path(self.path(name)), data)

    def sync(self, name: str = "") -> None:
        """Make the names in directory `name` durable; of the root where none is given."""
        sync_directory(Path(self.path(name)))

    def _fields(self, name: str, **kinds: type | UnionType) -> dict[str, Any]:
        """A record beside the checkpoints, with fields of these kinds at least.

        Raises `StoreError` if it is damaged.
        """
        try:
            fields = unsealed(self.read(name))
            if not 1 <= fields["schema"] <= SCHEMA:
                raise ValueError(f"schema {fields['schema']}; this version reads 1 to {SCHEMA}")
            for key, kind in kinds.items():
                if not isinstance(fields[key], kind):
                    raise TypeError(f"{key} = {fields[key]!r}")
        except KeyError as error:
            raise self._damaged(name, f"{error} is missing") from error
        except (ValueError, TypeError) as error:
            raise self._damaged(name, str(error)) from error
        return fields

    def _damaged(self, name: str, reason: str) -> StoreError:
        return StoreError(
            f"{self.path(name)} is damaged ({reason}); it says which checkpoints count, so nothing"
            " here is resumed from: put it back from a copy, or move it away to go on without"
            " what it says"
        )

    def _names(self, directory: str) -> list[str]:
        listed: list[Any] = self.files.ls(self.path(directory), detail=False)
        return [str(path).rsplit("/", 1)[-1] for path in listed]


def _located(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system behind `url` and the path in it. Raises `StoreError`."""
    protocol, _ = split_protocol(url)
    if protocol not in (None, "file", "local"):
        why = (
            "lives in one process alone, so no other rank and no later attempt would see it"
            if protocol == "memory"
            else "is not supported yet"
        )
        raise StoreError(f"checkpoints at {url!r}: {protocol}:// {why}; use file:///some/path")
    files, root = url_to_fs(url, use_listings_cache=False)
    return files, root
