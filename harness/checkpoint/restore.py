"""Finds the state to resume from: the newest that verifies, on the chain of the newest attempt.

Rank 0 proposes, every rank reads and verifies, and only what all of them could read is used. All of
it happens through messages, before any collective, so that no rank can be left waiting in one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

import msgspec

from harness.checkpoint.audit import manifest_of
from harness.checkpoint.lineage import Chain
from harness.checkpoint.load import Found, load
from harness.checkpoint.manifest import DamagedError, Place
from harness.checkpoint.messages import Channel, Messages, SilenceError
from harness.checkpoint.store import Store
from harness.checkpoint.tell import Records, warn
from harness.events import CheckpointRejected, Rejection
from harness.points import Point, reach


class RestoreError(ValueError):
    """There is no state that this attempt may start from."""


class _Do(StrEnum):
    """What rank 0 has all ranks do next."""

    TRY = "try"
    """Read and verify `place`, and report."""
    TAKE = "take"
    """Resume from what was tried last."""
    NOTHING = "nothing"
    """Start from nothing."""
    FAIL = "fail"
    """Give up, for `error`."""


@dataclass(frozen=True, slots=True)
class _Word:
    """What rank 0 says."""

    do: _Do
    place: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Report:
    """What a rank says of a checkpoint that it has read."""

    rank: int
    rejection: Rejection | None = None
    reason: str = ""


def choose(
    store: Store,
    messages: Messages,
    rank: int,
    world_size: int,
    attempt: int,
    resume: str,
    recorder: Records,
    deadline_s: float = 600.0,
) -> Found | None:
    """The state that all ranks resume from, or None to start from nothing; recorded as lineage.

    `resume` is `auto`, `fresh` or a step. Raises `RestoreError`, on all ranks alike, if a step that
    was asked for is not there whole, if nothing is whole where something was committed, or if a
    rank is not heard of for `deadline_s` seconds.
    """
    reach(Point.RESTORE)
    channel = Channel(messages, f"restore-{attempt}/")
    if rank != 0:
        return _follow(store, channel, rank, deadline_s)
    leader = _Leader(store, channel, world_size, attempt, recorder, deadline_s)
    try:
        return leader.choose(resume)
    except BaseException as error:
        leader.say(_Word(_Do.FAIL, error=str(error) or type(error).__name__))
        raise


def _follow(store: Store, channel: Channel, rank: int, deadline_s: float) -> Found | None:
    """Do as rank 0 says: read what it proposes, and report."""
    found: Found | None = None
    number = 0
    while True:
        # Rank 0 waits one deadline for the slowest of us; it, too, may need one.
        word = msgspec.json.decode(_hear(channel, f"word/{number}", 2 * deadline_s), type=_Word)
        number += 1
        match word.do:
            case _Do.TRY:
                place = Place.parse(word.place)
                assert place is not None, word
                found, report = _try(store, place, rank)
                channel.append(f"reports/{place.name}", msgspec.json.encode(report))
            case _Do.TAKE:
                return found
            case _Do.NOTHING:
                return None
            case _Do.FAIL:
                raise RestoreError(word.error)
            case _:
                assert_never(word.do)


def _hear(channel: Channel, key: str, within_s: float) -> bytes:
    try:
        return channel.hear(key, within_s=within_s)[1]
    except SilenceError as error:
        raise RestoreError(f"no agreement on what to resume from: {error}") from error


def _try(store: Store, place: Place, rank: int) -> tuple[Found | None, _Report]:
    """What this rank read of a checkpoint, and what it says of it."""
    try:
        return load(store, place, rank), _Report(rank)
    except DamagedError as error:
        return None, _Report(rank, error.rejection, error.reason)


class _Leader:
    """Rank 0's side: it walks back through the commits until all ranks could read one."""

    def __init__(
        self,
        store: Store,
        channel: Channel,
        world_size: int,
        attempt: int,
        recorder: Records,
        deadline_s: float,
    ) -> None:
        self._store = store
        self._channel = channel
        self._world_size = world_size
        self._attempt = attempt
        self._recorder = recorder
        self._deadline_s = deadline_s
        self._words = 0

    def say(self, word: _Word) -> None:
        """Tell all ranks what comes next."""
        self._channel.post(f"word/{self._words}", msgspec.json.encode(word))
        self._words += 1

    def choose(self, resume: str) -> Found | None:
        chain = self._store.chain()
        committed = [place for place in self._store.places() if self._store.is_committed(place)]
        accepted = [place for place in committed if chain.accepts(place.step, place.attempt)]
        candidates = [
            place
            for place in reversed(accepted)
            if resume == "auto" or (resume != "fresh" and place.step == int(resume))
        ]
        found = self._newest_whole(candidates)
        if found is None and resume != "fresh":
            self._refuse_nothing(resume, chain, accepted, committed)
        parent, step = (None, 0) if found is None else (found.saved_by, found.step)
        self._store.record_lineage(self._attempt, parent, step)
        self.say(_Word(_Do.NOTHING if found is None else _Do.TAKE))
        return found

    def _newest_whole(self, candidates: list[Place]) -> Found | None:
        for place in candidates:
            found, reports = self._propose(place)
            bad = next((report for report in reports if report.rejection is not None), None)
            if bad is None:
                return found
            self._reject(place, bad)
        return None

    def _propose(self, place: Place) -> tuple[Found | None, list[_Report]]:
        """Let every rank read `place`; what this one read, and what all say of it."""
        try:
            manifest_of(self._store, place)
        except DamagedError as error:  # no need to have every rank find that out
            return None, [_Report(0, error.rejection, error.reason)]
        self.say(_Word(_Do.TRY, place=place.name))
        found, report = _try(self._store, place, 0)
        key = f"reports/{place.name}"
        others = [
            msgspec.json.decode(
                _hear(self._channel, f"{key}/{number}", self._deadline_s), type=_Report
            )
            for number in range(1, self._world_size)
        ]
        self._channel.forget_list(key, self._world_size - 1)
        return found, sorted([report, *others], key=lambda report: report.rank)

    def _reject(self, place: Place, bad: _Report) -> None:
        assert bad.rejection is not None
        reason = bad.reason if bad.rank == 0 else f"rank {bad.rank}: {bad.reason}"
        self._recorder.write(CheckpointRejected(place.step, place.attempt, bad.rejection, reason))
        warn(f"walked past {place.name} ({bad.rejection}): {reason}")

    def _refuse_nothing(
        self, resume: str, chain: Chain, accepted: list[Place], committed: list[Place]
    ) -> None:
        """Raise `RestoreError` unless a start from nothing is what this run should do."""
        if resume == "auto":
            departures = self._store.departures()
            began = chain.newest is None or departures[chain.newest].parent is None
            if not accepted and began and (chain.newest is not None or not committed):
                return
            raise RestoreError(
                f"checkpoints were committed in {self._store.root}, and none of them can be resumed"
                " from (the lines above say why): start from nothing with resume=fresh"
            )
        good = ", ".join(str(step) for step in self._good_steps(accepted)) or "none"
        state = "is damaged" if any(p.step == int(resume) for p in accepted) else "is not there"
        raise RestoreError(
            f"the checkpoint of step {int(resume)} that was asked for {state} in"
            f" {self._store.root}; good ones: {good}"
        )

    def _good_steps(self, accepted: list[Place]) -> Iterator[int]:
        for place in accepted:
            if _try(self._store, place, 0)[0] is not None:
                yield place.step
