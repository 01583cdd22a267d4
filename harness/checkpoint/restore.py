"""Finds the state to resume from: the newest that verifies, on the chain of the newest attempt.

Rank 0 proposes, all ranks read and verify, and only what all of them could read is used. What is found
damaged is set aside. It all happens through messages, before any collective, so that no rank can be
left waiting in one.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from harness.checkpoint.assembly import Assembly
from harness.checkpoint.audit import (
    is_sound,
    set_aside,
    told_as_damage,
    verify,
    was_set_aside,
)
from harness.checkpoint.follow import Do, Here, Report, Word, follow, tried
from harness.checkpoint.lineage import Chain, was_committed
from harness.checkpoint.load import Found
from harness.checkpoint.manifest import DamagedError, Place, UnansweredError
from harness.checkpoint.messages import Channel, Messages
from harness.checkpoint.reading import Reader, this_node
from harness.checkpoint.recall import recall
from harness.checkpoint.recollection import Recollection
from harness.checkpoint.refusals import OutageError, RestoreError, told_as_outage
from harness.checkpoint.store import Store, record_of
from harness.checkpoint.tell import Records, said, warn
from harness.events import CheckpointRejected, Rejection
from harness.points import Point, reach


def choose(
    store: Store,
    messages: Messages,
    rank: int,
    world_size: int,
    attempt: int,
    resume: str,
    recorder: Records,
    deadline_s: float = 600.0,
    node: str | None = None,
    alive: Callable[[], None] = lambda: None,
    memory: Recollection | None = None,
    before: int | None = None,
) -> Found | None:
    """The state that all ranks resume from, or None to start from nothing; recorded as lineage.

    `resume` is `auto`, `fresh` or a step. Ranks of one `node` share what they read; None is the
    machine that this is. Raises `RestoreError`, on all ranks alike, if a step that was asked for is
    not there whole, if nothing is whole where something was committed, or if a rank is not heard of
    for `deadline_s` seconds; `OutageError`, which is one, if the storage cannot be asked. `alive` is
    called for each portion that this rank reads. With `before`, a state of more steps than that is
    resumed from only if none of fewer is left, and then the oldest.
    """
    reach(Point.RESTORE)
    channel = Channel(messages, f"restore-{attempt}/")
    here = Here(rank, this_node() if node is None else node)
    memory = memory or Recollection((), store.run_id, rank, world_size)
    with Reader(store, channel, rank, deadline_s, alive, memory) as reader:
        if rank != 0:
            return follow(channel, reader, here, deadline_s)
        ranks = Assembly(store, channel, reader, here, world_size, deadline_s)
        leader = _Leader(store, ranks, memory, attempt, recorder)
        try:
            with told_as_outage(store.root):
                return leader.choose(resume, before)
        except BaseException as error:
            do = Do.TRY_LATER if isinstance(error, OutageError) else Do.FAIL
            ranks.say(Word(do, error=str(error) or type(error).__name__))
            raise


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A state that may be resumed from; of one step and attempt, the one in memory comes first."""

    place: Place
    memory: bool = False


def in_turn(candidates: Iterable[Candidate], before: int | None) -> list[Candidate]:
    """In which order they are tried: the newest first, but those of more steps than `before` last."""
    newest_first = sorted(candidates, reverse=True)
    if before is None:
        return newest_first
    late = [it for it in newest_first if it.place.step > before]
    return [it for it in newest_first if it.place.step <= before] + late[::-1]


class _Leader:
    """Rank 0's side: it walks back through the commits until all ranks could read one."""

    def __init__(
        self,
        store: Store,
        ranks: Assembly,
        memory: Recollection,
        attempt: int,
        recorder: Records,
    ) -> None:
        self._store = store
        self._ranks = ranks
        self._memory = memory
        self._attempt = attempt
        self._recorder = recorder

    def choose(self, resume: str, before: int | None) -> Found | None:
        committed = self._committed()
        if resume != "fresh":
            unknown = recall(self._store, committed, below=self._attempt)
            if unknown and resume == "auto":
                raise self._lost(unknown[-1])
        chain = self._store.chain(below=self._attempt)
        accepted = [place for place in committed if chain.accepts(place.step, place.attempt)]
        stored = [
            Candidate(place)
            for place in accepted
            if resume == "auto" or (resume != "fresh" and place.step == int(resume))
        ]
        kept = self._remembered(chain) if resume == "auto" else []
        before = before if resume == "auto" else None
        chosen = self._first_whole(in_turn([*stored, *kept], before))
        if chosen is None and resume != "fresh":
            self._refuse_nothing(resume, chain, accepted, committed)
        if chosen is not None and before is not None and chosen[0].place.step > before:
            warn(
                f"no state of at most {before} steps is left: {chosen[0].place.name} is the oldest"
            )
        self._record(chosen)
        self._ranks.say(Word(Do.NOTHING if chosen is None else Do.TAKE))
        return None if chosen is None else chosen[1]

    def _record(self, chosen: tuple[Candidate, Found] | None) -> None:
        if chosen is None:
            self._store.record_lineage(self._attempt, None, 0)
            return
        candidate, found = chosen
        self._store.record_lineage(self._attempt, found.saved_by, found.step, candidate.memory)

    def _remembered(self, chain: Chain) -> list[Candidate]:
        """States on the chain that all ranks have in memory; it is all on one node, or nowhere."""
        places = [
            place for place in self._memory.places() if chain.accepts(place.step, place.attempt)
        ]
        if places and len(self._ranks.nodes()) > 1:
            return []
        return [Candidate(place, memory=True) for place in places]

    def _lost(self, attempt: int) -> RestoreError:
        record = self._store.path(record_of(attempt))
        return RestoreError(
            f"{record} is missing, and no commit says what attempt {attempt} resumed from, so nobody"
            " knows whether its checkpoints are the newest: put the record back from a copy, name"
            " the step to go on from (--resume STEP), or start from nothing (--resume fresh)"
        )

    def _committed(self) -> list[Place]:
        """All that was committed, oldest first; the newest also where a listing is too old to show it."""
        listed = set(self._store.committed())
        noted = self._store.noted_newest(listed)
        return sorted(listed if noted is None else listed | {noted})

    def _first_whole(self, candidates: list[Candidate]) -> tuple[Candidate, Found] | None:
        for candidate in candidates:
            found = self._recalled if candidate.memory else self._whole
            if state := found(candidate.place):
                return candidate, state
        return None

    def _recalled(self, place: Place) -> Found | None:
        """The state of `place` out of memory. Whatever is wrong with that, there is another."""
        found: list[Found] = []
        bad = self._ranks.recall(place) or self._ranks.build(found)
        if bad is None:
            return found[0]
        reason = f"in memory, rank {bad.rank}: {bad.outage or bad.reason}"
        rejection = bad.rejection or Rejection.UNREADABLE
        self._recorder.write(CheckpointRejected(place.step, place.attempt, rejection, reason))
        warn(f"walked past {place.name} ({rejection}): {reason}")
        return None

    def _whole(self, place: Place) -> Found | None:
        """The state of `place` out of the storage, if it is what was committed."""
        if self._was_set_aside(place):
            return None
        found: list[Found] = []
        bad = self._tried(place, found)
        if bad is not None and bad.may_pass:
            self._check_answers(place)
            bad = self._tried(place, found)
        if bad is None:
            return found[0]
        self._reject(place, bad)
        return None

    def _tried(self, place: Place, found: list[Found]) -> Report | None:
        """Let all ranks make their state of `place`; the first report that it cannot be used, or None.

        Raises `OutageError` where a rank cannot tell: then nobody walks back.
        """
        found.clear()
        bad = self._ranks.read(place) or self._ranks.build(found)
        if bad is not None and bad.outage:
            raise self._unanswered(place, bad)
        return bad

    def _check_answers(self, place: Place) -> None:
        """Raise `OutageError` unless the storage answers but for files of `place`."""
        mine = tried(0, self._look)
        if mine.outage or mine.rejection is not None:
            raise self._unanswered(place, mine)

    def _look(self) -> None:
        with told_as_damage():
            self._store.owner()

    def _unanswered(self, place: Place, report: Report) -> OutageError:
        return OutageError(
            f"{place.name} in {self._store.root} cannot be read now (rank {report.rank}:"
            f" {report.outage or report.reason}): that is no damage, so nothing older is resumed from;"
            " launch it again once that has passed, or name another step (--resume STEP)"
        )

    # ── what is walked past ─────────────────────────────────────────────────────────────────

    def _was_set_aside(self, place: Place) -> bool:
        try:
            known = was_set_aside(self._store, place)
        except Exception as error:  # noqa: BLE001  # reading the checkpoint itself will tell
            warn(f"whether {place.name} was set aside cannot be read: {said(error)}")
            return False
        if known is None:
            return False
        warn(f"walked past {place.name}, set aside ({known.rejection}): {known.reason}")
        return True

    def _reject(self, place: Place, bad: Report) -> None:
        assert bad.rejection is not None
        reason = bad.reason if bad.rank == 0 else f"rank {bad.rank}: {bad.reason}"
        self._recorder.write(CheckpointRejected(place.step, place.attempt, bad.rejection, reason))
        aside = self._set_aside(place, bad, DamagedError(bad.rejection, reason))
        warn(f"walked past {place.name} ({bad.rejection}): {reason}{aside}")

    def _set_aside(self, place: Place, bad: Report, damage: DamagedError) -> str:
        """Spare later restores the reading, if the damage is there to stay; what to say of that."""
        if bad.may_pass or not self._is_there_to_stay(place, bad):
            return ""
        try:
            set_aside(self._store, place, damage, self._attempt)
        except Exception as error:  # noqa: BLE001  # it costs a later restore time, nothing else
            return f"; that cannot be written down: {said(error)}"
        return "; set aside"

    def _is_there_to_stay(self, place: Place, bad: Report) -> bool:
        """False for a view of the files that lags behind, on one rank, and where nobody can look now."""
        if bad.rejection is Rejection.CHECKSUM:
            return True
        try:
            return not is_sound(self._store, place)
        except UnansweredError:
            return False

    def _refuse_nothing(
        self, resume: str, chain: Chain, accepted: list[Place], committed: list[Place]
    ) -> None:
        """Raise `RestoreError` unless a start from nothing is what this run should do."""
        if resume == "auto":
            departures = self._store.departures(below=self._attempt)
            began = not was_committed(departures)
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
            try:
                with told_as_damage():
                    if was_set_aside(self._store, place) is None:
                        verify(self._store, place)
                        yield place.step
            except (DamagedError, UnansweredError):
                continue
