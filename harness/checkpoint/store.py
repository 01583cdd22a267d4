"""Where the checkpoints of one run are kept: what its names mean, and that no call to it lasts for ever.

What each kind of storage has to promise is in objects.py; here nothing is special about any of them.
"""

import errno
import os
import re
import secrets
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from types import UnionType
from typing import Any

from harness.checkpoint.address import StoreError
from harness.checkpoint.lineage import Chain, Departure, chain
from harness.checkpoint.manifest import COMMIT, Place
from harness.checkpoint.patience import tells_nothing
from harness.checkpoint.policy import NONE_SPARED, Spared
from harness.checkpoint.seal import sealed, unsealed
from harness.checkpoint.vault import Vault, locate

SCHEMA = 1
_REMOVALS = 10
_CLAIM = re.compile(r"(\d{5,})\.claim")
_DEPARTURE = re.compile(r"(\d{5,})\.json")
_RUN, _ATTEMPTS = "run.json", "attempts"
_NEWEST = f"{_ATTEMPTS}/newest.json"
_PROBE = re.compile(r"probe-[0-9a-f]{16}")


__all__ = ["Store", "StoreError", "is_own", "probe_folder"]


def probe_folder() -> str:
    """A folder in which to try out a storage; nobody else has its name."""
    return f"probe-{secrets.token_hex(8)}"


def is_own(name: str) -> bool:
    """True for the names that this library writes; whatever else is in a storage is somebody's own."""
    top = name.partition("/")[0]
    known = name == _RUN or top == _ATTEMPTS or _PROBE.fullmatch(top) is not None
    return known or Place.parse(top) is not None


@dataclass(frozen=True, slots=True)
class Store(Vault):
    """The storage of one run's checkpoints. Safe to use from several processes and threads."""

    spared: Spared = NONE_SPARED
    """What retention leaves beside the newest."""
    _departed: dict[int, Departure] = field(default_factory=dict, compare=False, repr=False)
    """Records of lineage that were read; they are written once."""

    @classmethod
    def at(cls, url: str, run_id: str, **options: Any) -> "Store":
        """The storage at `url`, which is not touched yet.

        Raises `StoreError` for a kind of storage that cannot hold checkpoints.
        """
        return cls(*locate(url), run_id, **options)

    @classmethod
    def open(cls, url: str, run_id: str, **options: Any) -> "Store":
        """The storage at `url`, made if it is not there.

        Raises `StoreError` for a kind of storage that cannot hold checkpoints, and for one that
        holds another run's.
        """
        store = cls.at(url, run_id, **options)
        store.adopt()
        return store

    @classmethod
    def existing(cls, url: str, **options: Any) -> "Store":
        """The storage at `url`, of whichever run it is; nothing is written.

        Raises `StoreError` where no run keeps its checkpoints.
        """
        store = cls.at(url, "", **options)
        try:
            return replace(store, run_id=store.owner())
        except FileNotFoundError:
            raise StoreError(
                f"no run keeps its checkpoints in {store.root}: there is no {_RUN}"
            ) from None

    def adopt(self) -> None:
        """Mark the storage as this run's. Raises `StoreError` if it is another's."""
        self.make()
        try:
            self._check_owner()
        except FileNotFoundError:
            self.create(_RUN, sealed({"schema": SCHEMA, "run_id": self.run_id}))
            self._check_owner()

    def _check_owner(self) -> None:
        """Raise `StoreError` for another run's storage, and `FileNotFoundError` for nobody's."""
        owner = self.owner()
        if owner != self.run_id:
            raise StoreError(
                f"{self.root} holds the checkpoints of run {owner!r}, and this is run"
                f" {self.run_id!r}: give each run a place of its own"
            )

    def check_kept(self) -> None:
        """Raise `StoreError` unless the storage, which was this run's, still is."""
        try:
            self._check_owner()
        except FileNotFoundError:
            raise StoreError(
                f"{self.root} was emptied or replaced since the run has used it ({_RUN} is not"
                " there): put its checkpoints back there, or start from nothing with --resume fresh"
            ) from None

    def owner(self) -> str:
        """The run that keeps its checkpoints here, read anew. Raises `FileNotFoundError`."""
        run_id: str = self._fields(_RUN, run_id=str)["run_id"]
        return run_id

    # ── attempts and their lineage ──────────────────────────────────────────────────────────

    def newest_attempt(self) -> int:
        """The highest number that an attempt claimed or chose its state under; 0 before the first."""
        return max([*self._numbers(_CLAIM), *self._numbers(_DEPARTURE)], default=0)

    def claim_attempt(self, above: int = 0) -> int:
        """The next attempt's number, which no one else has or ever gets; the first is 1.

        It is higher than `above`: a script may move its checkpoints after an attempt was claimed.
        Raises `StoreError` for storage that is not this run's any more: an attempt would begin at step 1
        again only because somebody emptied a bucket, or a disk is not there.
        """
        self.check_kept()
        number = max(above, self.newest_attempt()) + 1
        while not self.create(f"{_ATTEMPTS}/{number:05d}.claim", self._claim(number)):
            number += 1
        return number

    def _claim(self, attempt: int) -> bytes:
        who = {"host": socket.gethostname(), "pid": os.getpid(), "nonce": secrets.token_hex(8)}
        return sealed({"schema": SCHEMA, "run_id": self.run_id, "attempt": attempt, **who})

    def record_lineage(
        self, attempt: int, parent: int | None, step: int, memory: bool = False
    ) -> None:
        """Write down, once, what `attempt` resumed from. Raises `StoreError` the second time."""
        if not self.recall_lineage(attempt, Departure(parent, step, memory)):
            raise StoreError(
                f"attempt {attempt} has chosen its state already ({record_of(attempt)} exists):"
                " every start claims an attempt number of its own"
            )

    def recall_lineage(self, attempt: int, departure: Departure) -> bool:
        """Write down what an attempt resumed from, unless it is; False if it is."""
        nonce = secrets.token_hex(8)
        fields = {"attempt": attempt, **asdict(departure)}
        record = {"schema": SCHEMA, "run_id": self.run_id, **fields, "nonce": nonce}
        return self.create(record_of(attempt), sealed(record))

    def departures(self, below: int = 0) -> dict[int, Departure]:
        """Where each attempt that has chosen began.

        Those `below` a number that a listing does not show, because it is an old one, are looked for
        by name.
        """
        numbers = self._numbers(_DEPARTURE)
        numbers += filter(self._has_departed, range(max(numbers, default=0) + 1, below))
        for attempt in numbers:
            if attempt not in self._departed:
                record = record_of(attempt)
                fields = self._fields(record, attempt=int, parent=int | None, step=int)
                if fields["attempt"] != attempt:
                    raise self._damaged(record, f"it is that of attempt {fields['attempt']}")
                memory = bool(fields.get("memory", False))  # older versions did not say
                self._departed[attempt] = Departure(fields["parent"], fields["step"], memory)
        return {attempt: self._departed[attempt] for attempt in numbers}

    def _has_departed(self, attempt: int) -> bool:
        try:
            self.read(record_of(attempt))
        except FileNotFoundError:
            return False
        return True

    def chain(self, below: int = 0) -> Chain:
        """The attempts that count now. Raises `StoreError` where their records cannot all be true."""
        return self.chain_of(self.departures(below))

    def chain_of(self, departures: Mapping[int, Departure]) -> Chain:
        """The same, of records that were read already. Raises `StoreError` if they contradict each other."""
        try:
            return chain(departures)
        except ValueError as error:
            raise StoreError(f"{self.path(_ATTEMPTS)}: {error}") from None

    def _numbers(self, form: re.Pattern[str]) -> list[int]:
        names = (name.rsplit("/", 1)[-1] for name in self.listing(_ATTEMPTS))
        matches = (form.fullmatch(name) for name in names)
        return sorted(int(match.group(1)) for match in matches if match is not None)

    # ── checkpoints ─────────────────────────────────────────────────────────────────────────

    def places(self) -> list[Place]:
        """Every save of which there is anything, committed or not, oldest step first."""
        return places_in(self.inventory())

    def committed(self) -> list[Place]:
        """Every save that has a commit, oldest step first, by one listing."""
        listed = self.inventory()
        return [place for place in places_in(listed) if f"{place.name}/{COMMIT}" in listed]

    def is_committed(self, place: Place) -> bool:
        """True once the commit is there; what it says is another question."""
        return f"{place.name}/{COMMIT}" in self.listing(place.name)

    def note_newest(self, place: Place) -> None:
        """Say by name what was committed last, for readers whose listing is one of some time ago."""
        self.write(
            _NEWEST, [sealed({"schema": SCHEMA, "run_id": self.run_id, "place": place.name})]
        )

    def noted_newest(self, listed: Collection[Place]) -> Place | None:
        """What was noted last, if its commit is `listed` or there all the same."""
        try:
            place = Place.parse(self._fields(_NEWEST, place=str)["place"])
            if place is not None and place not in listed:
                self.read(f"{place.name}/{COMMIT}")
        except (StoreError, OSError) as error:
            if tells_nothing(error):
                raise
            return None  # it is a hint, and most often a listing says the same
        return place

    def begin(self, place: Place) -> None:
        """Make sure that no one has written to `place` yet. Raises `FileExistsError` if so."""
        if found := sorted(self.listing(place.name)):
            raise FileExistsError(errno.EEXIST, "it was used before", found[0])

    def remove(self, place: Place, between: Callable[[], None] = lambda: None) -> None:
        """Delete a save: the commit first, so that no one trusts what is half gone.

        `between` is called after each deletion. Again and again if need be, since another rank may
        open its file in the middle of it. Raises `OSError` if that never ends.
        """
        for _ in range(_REMOVALS):
            names = sorted(self.listing(place.name), key=_commit_first)
            for name in names:
                with suppress(FileNotFoundError):
                    self.delete(name)
                between()
            self.sweep(lambda name, _: name.startswith(f"{place.name}/"))
            if not names:
                return
        raise OSError(errno.ENOTEMPTY, "others keep writing into it", place.name)

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
            " here is resumed from: put it back from a copy, or move it away to go on with what the"
            " commits say"
        )


def record_of(attempt: int) -> str:
    """The name of the record of what an attempt resumed from."""
    return f"{_ATTEMPTS}/{attempt:05d}.json"


def places_in(names: Iterable[str]) -> list[Place]:
    """The places that files of these names are in, oldest step first."""
    folders = {name.partition("/")[0] for name in names if "/" in name}
    found = (Place.parse(folder) for folder in folders)
    return sorted(place for place in found if place is not None)


def _commit_first(name: str) -> tuple[bool, str]:
    return not name.endswith(f"/{COMMIT}"), name
