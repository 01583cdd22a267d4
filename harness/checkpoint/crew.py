"""The ranks of one attempt as the saver knows them, and the saves that they have handed over.

Every save has a thread of its own, so that what a dead attempt left in flight is in nobody's way.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from harness.checkpoint.collection import Collected, Next, decide
from harness.checkpoint.commit import SaveError, check_layouts, publish
from harness.checkpoint.manifest import FileRecord, Place
from harness.checkpoint.share import Shard, Share, reports, write_shard
from harness.checkpoint.store import Store
from harness.checkpoint.tell import warn
from harness.checkpoint.upkeep import discard, make_room, prune, sweep_own
from harness.checkpoint.wire import Ended, Handed, Hello, Member
from harness.checkpoint.writer import why
from harness.events import Event, SaveCommitted, SaveFailed, Tier

_AT_ONCE = 8
"""Shards written at the same time: a disk is busy with two, an object store is not."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank handed over."""

    share: Share | None
    failure: str | None
    memory: memoryview
    slot: int


@dataclass(slots=True)
class Save:
    """One save, from the first share to its end."""

    number: int
    place: Place
    since_s: float
    parts: dict[int, Part] = field(default_factory=dict)
    stopped: str = ""
    """Why it is not to become durable."""
    committing: bool = False
    begun: bool = False
    told: bool = False
    """Its failure was."""


class Crew:
    """One attempt. Its methods are called from any thread."""

    def __init__(
        self, hello: Hello, open_store: Callable[[], Store], tell: Callable[[Event, int], None]
    ) -> None:
        self.hello = hello
        self._open_store = open_store
        self._tell = tell
        self._changed = threading.Condition()
        self._members: dict[int, Member] = {}
        self._gone: set[int] = set()
        self._saves: dict[int, Save] = {}
        self._ended = Ended(-1, committed=False)
        self._swept = False
        self._opening = threading.Lock()
        self._store: Store | None = None

    # ── what ranks do ───────────────────────────────────────────────────────────────────────

    def join(self, hello: Hello, member: Member) -> None:
        """A rank has connected, for the first time or again."""
        with self._changed:
            self._members[hello.rank] = member
            self._gone.discard(hello.rank)
            if hello.rank == 0:
                self.hello = hello

    def part(self, rank: int, member: Member) -> None:
        """A rank's connection or process has ended."""
        with self._changed:
            if self._members.get(rank) is member:
                del self._members[rank]
                self._gone.add(rank)
                self._changed.notify_all()

    def take(self, rank: int, handed: Handed, memory: memoryview) -> None:
        """A rank hands over its share of a save. Raises `ValueError` for one that cannot be."""
        share = handed.share
        if share is not None and not all(_fits(shard, memory) for shard in share.shards):
            raise ValueError(f"rank {rank} handed over shards outside of its memory")
        with self._changed:
            if handed.number <= self._ended.number:
                self._answer_late(rank, handed.number)
                return
            for number, older in self._saves.items():
                if number < handed.number:
                    self._stop(older, f"the save of step {handed.place.step} has begun")
            save = self._saves.get(handed.number)
            if save is None:
                save = Save(handed.number, handed.place, time.monotonic())
                self._saves[handed.number] = save
                threading.Thread(target=self._see_through, args=(save,), daemon=True).start()
            save.parts[rank] = Part(share, handed.failure, memory, handed.slot)
            self._changed.notify_all()

    def give_up(self, number: int, reason: str) -> None:
        """Rank 0 does not want a save any more, or a rank is about to use its memory again."""
        with self._changed:
            save = self._saves.get(number)
            if save is None or save.committing:
                return
            self._stop(save, reason)
        self._fail(save, reason)  # now: what writes it may be stuck

    # ── what the saver does ─────────────────────────────────────────────────────────────────

    def stop(self, reason: str, *, only_incomplete: bool = False) -> None:
        """Abandon what is in flight."""
        with self._changed:
            for save in self._saves.values():
                if not (only_incomplete and len(save.parts) == self.hello.world_size):
                    self._stop(save, reason)

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight; False if something still is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._saves, timeout_s)

    def hear_out(self, within_s: float) -> None:
        """Wait until all that dead ranks said is read."""
        with self._changed:
            self._changed.wait_for(
                lambda: all(member.lives for member in self._members.values()), within_s
            )

    @property
    def is_over(self) -> bool:
        """True if no rank is connected and nothing is in flight."""
        with self._changed:
            return not self._members and not self._saves

    def writes_from(self, rank: int, slot: int) -> bool:
        """True if a save in flight lies in that memory."""
        with self._changed:
            parts = [save.parts.get(rank) for save in self._saves.values()]
        return any(part is not None and part.slot == slot for part in parts)

    def store(self) -> Store:
        """The run's storage, as the run's settings have it in this attempt."""
        with self._opening:
            if self._store is None:
                self._store = self._open_store()
            return self._store

    # ── one save ────────────────────────────────────────────────────────────────────────────

    def _see_through(self, save: Save) -> None:
        try:
            ended = self._concluded(save)
        except BaseException as error:  # noqa: BLE001  # ranks wait for a word, whatever went wrong
            ended = Ended(save.number, False, why(error))
        with self._changed:
            del self._saves[save.number]
            self._ended = max(self._ended, ended, key=lambda one: one.number)
            members = list(self._members.values())
            self._changed.notify_all()
        for member in members:
            with suppress(OSError):  # a rank that has gone does not need to know
                member.line.send(ended)

    def _concluded(self, save: Save) -> Ended:
        reason = self._collected(save)
        store = None
        if not reason:
            try:
                store = self.store()
                size = self._written(save, store)
            except BaseException as error:  # noqa: BLE001  # some storage errors are no `Exception`
                reason = save.stopped or why(error)
        if reason:
            self._fail(save, reason)
            if save.begun and store is not None:
                discard(store, save.place)
                make_room(store, self.hello.keep, reason, self._say, self._all_live)
            return Ended(save.number, False, reason)
        assert store is not None
        self._say(SaveCommitted(save.place.step, Tier.STORAGE, size))
        prune(store, self.hello.keep, self._say, self._all_live)
        return Ended(save.number, True)

    def _say(self, event: Event) -> None:
        self._tell(event, self.hello.attempt)

    def _collected(self, save: Save) -> str:
        """Wait for all shares; why there is no hope of them, or nothing."""
        with self._changed:
            while not save.stopped:
                waited_s = time.monotonic() - save.since_s
                decision = decide(
                    Collected(
                        self.hello.world_size,
                        {rank: part.failure for rank, part in save.parts.items()},
                        self._gone,
                        waited_s,
                        self.hello.deadline_s,
                    )
                )
                if decision.next is not Next.WAIT:
                    return decision.reason
                self._changed.wait(self.hello.deadline_s - waited_s)
            return save.stopped

    def _written(self, save: Save, store: Store) -> int:
        """Write, describe and commit; the size in bytes."""
        parts = [save.parts[rank] for rank in range(self.hello.world_size)]
        shares = [part.share for part in parts if part.share is not None]
        check_layouts([share.layout for share in shares])
        if not self._swept:
            sweep_own(store, save.place)
            self._swept = True
        store.begin(save.place)
        save.begun = True
        jobs = [
            (share.rank, shard, part.memory)
            for share, part in zip(shares, parts, strict=True)
            for shard in share.shards
        ]
        with ThreadPoolExecutor(min(_AT_ONCE, len(jobs)), "checkpoint-shard") as threads:
            written = list(threads.map(lambda job: self._shard(save, store, *job), jobs))
        return publish(
            store,
            save.place,
            reports(shares, [job[1].name for job in jobs], written),
            self.hello.fingerprint,
            lambda: self._may_commit(save),
        )

    def _shard(
        self, save: Save, store: Store, rank: int, shard: Shard, memory: memoryview
    ) -> FileRecord:
        """Write one shard; its failure ends the others."""
        try:
            return write_shard(shard, memory, save.place, store, lambda: _go_on(save))
        except BaseException as error:
            with self._changed:
                self._stop(save, f"rank {rank}: {why(error)}")
            raise

    def _may_commit(self, save: Save) -> None:
        with self._changed:
            _go_on(save)
            save.committing = True

    def _all_live(self) -> bool:
        """True while every rank does: then no other attempt can be choosing its state.

        What a later one reads must not be deleted under it; it lists what there is after our ranks
        have died, so it sees what was committed while they lived.
        """
        with self._changed:
            members = list(self._members.values())
        return len(members) == self.hello.world_size and all(member.lives for member in members)

    def _fail(self, save: Save, reason: str) -> None:
        """Tell it, once; where rank 0 handed over nothing it began none, or tells it itself."""
        with self._changed:
            silent, save.told = save.told or 0 not in save.parts, True
        if not silent:
            self._tell(SaveFailed(save.place.step, Tier.STORAGE, reason), self.hello.attempt)
            warn(f"the save of step {save.place.step} failed: {reason}")

    def _stop(self, save: Save, reason: str) -> None:
        if not save.committing:
            save.stopped = save.stopped or reason
            self._changed.notify_all()

    def _answer_late(self, rank: int, number: int) -> None:
        ended = Ended(number, False, "the save had failed already")
        with suppress(OSError, KeyError):
            self._members[rank].line.send(self._ended if number == self._ended.number else ended)


def _fits(shard: Shard, memory: memoryview) -> bool:
    return 0 <= shard.begin <= shard.begin + shard.size_bytes <= len(memory)


def _go_on(save: Save) -> None:
    if save.stopped:
        raise SaveError(save.stopped)
