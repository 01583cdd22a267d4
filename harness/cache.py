"""The fold of a run that goes on, kept between readers so that each reads only the tail of the log.

The cache can be recomputed at any time: one that is damaged, made by other code, or of another log
is dropped without a word. Resuming from it gives exactly what folding from the start gives.
"""

import contextlib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

import msgspec
import xxhash

from harness.fold import Fold, TimelineError
from harness.journal import HORIZON_NS, Tail, TailState
from harness.recorder import SYSTEM_CLOCK, Clock
from harness.replace import replace_file
from harness.rundir import RunDir

SAVE_EVERY_ENTRIES = 20_000
"""After so many new entries the cache is written again; folding them anew takes a fraction of a second."""

CODE = (
    "account events fold histogram journal ledger lines lives phases recent recovery saves segments"
    " sightings signals.findings signals.speed signals.straggler signals.tally tallies"
)
"""Modules and packages that the fold depends on; when any changes, every cache is outdated."""

_CHECK_BYTES = 4096
_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the cache holds."""

    code: str
    tail: TailState
    checks: dict[str, str]
    """By event file: a digest of the bytes before the place that it was read to."""
    fold: Fold
    impossible: int
    first_impossible: str


class Following:
    """A run's log, folded as far as it goes; `poll` takes in what is new.

    An entry that cannot have happened is left out and counted, so that one bad line does not blind
    those who watch; `timeline` is the place that refuses.
    """

    fold: Fold
    impossible: int
    """How many entries were left out because they cannot have happened."""
    first_impossible: str
    """What was wrong with the first of them."""

    def __init__(self, run_dir: RunDir, clock: Clock = SYSTEM_CLOCK) -> None:
        kept = _load(run_dir)
        self._run_dir = run_dir
        self._new = 0
        self._is_ahead = False
        if kept is None:
            kept = _Kept("", TailState(), {}, Fold(), 0, "")
        self.fold, self.tail = kept.fold, Tail(run_dir, kept.tail, clock)
        self.impossible, self.first_impossible = kept.impossible, kept.first_impossible

    def poll(self, now_ns: int | None = None) -> int:
        """Take in every entry up to a second before `now_ns`; gives how many were new."""
        count = 0
        for batch in self.tail.batches(now_ns):
            for entry in batch:
                try:
                    self.fold.feed(entry)
                except TimelineError as error:
                    self.first_impossible = self.first_impossible or str(error)
                    self.impossible += 1
            count += len(batch)
        self._new += count
        if self._new >= SAVE_EVERY_ENTRIES:
            self.save()
        return count

    def poll_ahead(self) -> int:
        """Take in the last second too, for whoever looks now; gives how many entries were new.

        What still arrives may belong before it, so nothing is kept for other readers from here on.
        """
        self._is_ahead = True
        return self.poll(self.tail.now_ns() + HORIZON_NS)

    def save(self) -> None:
        """Write the cache, whole or not at all; a run directory that cannot be written keeps none.

        Nor does a run that counts something beyond 2⁶⁴, which msgpack cannot hold, or a reader that
        is ahead of the horizon.
        """
        self._new = 0
        if self._is_ahead:
            return
        state = self.tail.state()
        checks = {
            name: check
            for name, file in state.files.items()
            if (check := _check(self._run_dir.events / name, file.offset)) is not None
        }
        kept = _Kept(_code(), state, checks, self.fold, self.impossible, self.first_impossible)
        with contextlib.suppress(OSError, OverflowError):
            body = msgspec.msgpack.encode(kept)
            self._run_dir.cache.mkdir(exist_ok=True)
            replace_file(self._run_dir.fold, xxhash.xxh3_64_digest(body) + body)

    def close(self) -> None:
        """Write the cache if anything is new."""
        if self._new:
            self.save()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _load(run_dir: RunDir) -> _Kept | None:
    """The cache, or None where there is none that is good."""
    try:
        data = run_dir.fold.read_bytes()
    except OSError:
        return None
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if xxhash.xxh3_64_digest(body) != digest:
        return None
    try:
        if msgspec.msgpack.decode(body, type=_Made).code != _code():
            return None
        kept = msgspec.msgpack.decode(body, type=_Kept)
    except msgspec.MsgspecError:
        return None
    for name, file in kept.tail.files.items():
        if kept.checks.get(name) != _check(run_dir.events / name, file.offset):
            return None
    return kept


class _Made(msgspec.Struct):
    """By which code a cache was made."""

    code: str


def _check(path: Path, offset: int) -> str | None:
    """A digest of the bytes before `offset`; None where the file is gone or shorter."""
    start = max(0, offset - _CHECK_BYTES)
    try:
        with path.open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), offset - start, start)
    except OSError:
        return None
    return xxhash.xxh3_64_hexdigest(data) if len(data) == offset - start else None


@cache
def _code() -> str:
    """Names the code that makes the fold: what the files of `CODE` say."""
    here = Path(__file__).parent
    digest = xxhash.xxh3_64()
    for name in CODE.split():
        place = here / name.replace(".", "/")
        for file in sorted(place.glob("*.py")) or [place.with_suffix(".py")]:
            digest.update(file.read_bytes())
    return digest.hexdigest()
