"""Finds the state to resume from: the newest that verifies, on the chain of the newest attempt.

Rank 0 proposes, all ranks read and verify, and only what all of them could read is used. What is found
damaged is set aside. It all happens through messages, before any collective, so that no rank can be
left waiting in one.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from harness.checkpoint.audit import (
    is_sound,
    manifest_of,
    set_aside,
    told_as_damage,
    verify,
    was_set_aside,
)
from harness.checkpoint.follow import Do, Here, Report, Word, follow, hear, tried
from harness.checkpoint.lineage import Chain
from harness.checkpoint.load import Found
from harness.checkpoint.manifest import (
    DamagedError,
    Manifest,
    NewerError,
    Place,
    UnansweredError,
)
from harness.checkpoint.messages import Channel, Messages
from harness.checkpoint.reading import Reader, this_node
from harness.checkpoint.recall import recall
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
) -> Found | None:
    """The state that all ranks resume from, or None to start from nothing; recorded as lineage.

    `resume` is `auto`, `fresh` or a step. Ranks of one `node` share what they read; None is the
    machine that this is. Raises `RestoreError`, on all ranks alike, if a step that was asked for is
    not there whole, if nothing is whole where something was committed, or if a rank is not heard of
    for `deadline_s` seconds; `OutageError`, which is one, if the storage cannot be asked. `alive` is called for each portion that this rank reads.
    """
    reach(Point.RESTORE)
    channel = Channel(messages, f"restore-{attempt}/")
    here = Here(rank, this_node() if node is None else node)
    with Reader(store, channel, rank, deadline_s, alive) as reader:
        if rank != 0:
            return follow(channel, reader, here, deadline_s)
        leader = _Leader(store, channel, reader, here, world_size, attempt, recorder, deadline_s)
        try:
            with told_as_outage(store.root):
                return leader.choose(resume)
        except BaseException as error:
            do = Do.TRY_LATER if isinstance(error, OutageError) else Do.FAIL
            leader.say(Word(do, error=str(error) or type(error).__name__))
            raise


class _Leader:
    """Rank 0's side: it walks back through the commits until all ranks could read one."""

    def __init__(
        self,
        store: Store,
        channel: Channel,
        reader: Reader,
        here: Here,
        world_size: int,
        attempt: int,
        recorder: Records,
        deadline_s: float,
    ) -> None:
        self._store = store
        self._channel = channel
        self._reader = reader
        self._here = here
        self._world_size = world_size
        self._attempt = attempt
        self._recorder = recorder
        self._deadline_s = deadline_s
        self._words = 0
        self._nodes: Sequence[Sequence[int]] = ()

    def say(self, word: Word) -> int:
        """Tell all ranks what comes next; the word's number."""
        number = self._words
        self._channel.post(f"word/{number}", msgspec.json.encode(word))
        self._words += 1
        return number

    def choose(self, resume: str) -> Found | None:
        committed = self._committed()
        if resume != "fresh":
            unknown = recall(self._store, committed, below=self._attempt)
            if unknown and resume == "auto":
                raise self._lost(unknown[-1])
        chain = self._store.chain(below=self._attempt)
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
        self.say(Word(Do.NOTHING if found is None else Do.TAKE))
        return found

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

    def _newest_whole(self, candidates: list[Place]) -> Found | None:
        for place in candidates:
            if self._was_set_aside(place):
                continue
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
        bad = self._read(place) or self._build(found)
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

    def _read(self, place: Place) -> Report | None:
        """Let all ranks read `place`; the first report that it cannot be used, or None."""
        manifest: list[Manifest] = []
        alone = tried(0, lambda: manifest.append(self._manifest_of(place)))
        if not manifest:  # no need to have every rank find that out
            return alone
        nodes = self._grouped()
        number = self.say(Word(Do.READ, place.name, nodes))
        mine = tried(0, lambda: self._reader.read(place, number, nodes[0], manifest[0]))
        bad = self._worst(number, mine)
        self._channel.forget(f"arena/{number}/{ranks[0]}" for ranks in nodes)
        return bad

    def _manifest_of(self, place: Place) -> Manifest:
        """As audit has it. Raises `RestoreError` for one that is whole: walking past it would lose work."""
        try:
            return manifest_of(self._store, place)
        except NewerError as error:
            raise RestoreError(
                f"{place.name} in {self._store.root} was saved by a newer version of this library"
                f" ({error.reason}): resume with that version, or name an older step (--resume STEP)"
            ) from error

    def _build(self, found: list[Found]) -> Report | None:
        """Let all ranks make their state of what was read; likewise."""
        number = self.say(Word(Do.BUILD))
        return self._worst(number, tried(0, lambda: found.append(self._reader.build())))

    def _grouped(self) -> Sequence[Sequence[int]]:
        """The ranks of each node; rank 0 is the first of the first."""
        if not self._nodes:
            ranks: dict[str, list[int]] = {}
            said = (msgspec.json.decode(word, type=Here) for word in self._all("here"))
            for here in sorted([self._here, *said], key=lambda here: here.rank):
                ranks.setdefault(here.node, []).append(here.rank)
            self._nodes = list(ranks.values())
        return self._nodes

    def _worst(self, number: int, mine: Report) -> Report | None:
        """Of all reports on a word the first, by rank, of something that does not serve.

        One of an outage comes before all: another rank's damage may be of the same making.
        """
        others = [msgspec.json.decode(word, type=Report) for word in self._all(f"reports/{number}")]
        reports = sorted([mine, *others], key=lambda report: (not report.outage, report.rank))
        return next((it for it in reports if it.outage or it.rejection is not None), None)

    def _all(self, key: str) -> list[bytes]:
        """What every other rank has to say, in the order in which they said it."""
        words = [
            hear(self._channel, f"{key}/{place}", self._deadline_s)
            for place in range(1, self._world_size)
        ]
        self._channel.forget_list(key, self._world_size - 1)
        return words

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
        # A view of the files that lags behind, on one rank, is no damage.
        seen = bad.rejection is Rejection.CHECKSUM or not is_sound(self._store, place)
        if bad.may_pass or not seen:
            return ""
        try:
            set_aside(self._store, place, damage, self._attempt)
        except Exception as error:  # noqa: BLE001  # it costs a later restore time, nothing else
            return f"; that cannot be written down: {said(error)}"
        return "; set aside"

    def _refuse_nothing(
        self, resume: str, chain: Chain, accepted: list[Place], committed: list[Place]
    ) -> None:
        """Raise `RestoreError` unless a start from nothing is what this run should do."""
        if resume == "auto":
            departures = self._store.departures(below=self._attempt)
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
            try:
                with told_as_damage():
                    if was_set_aside(self._store, place) is None:
                        verify(self._store, place)
                        yield place.step
            except (DamagedError, UnansweredError):
                continue
