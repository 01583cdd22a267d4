"""What is counted of saves, checkpoints and restores. All of it bounded, all of it from the log.

Counts only rise. Lists hold the last so many; what is no longer in a list is still in the counts.
"""

from dataclasses import dataclass, field, replace

from harness.events import (
    CheckpointRejected,
    Rejection,
    SaveCommitted,
    SaveFailed,
    SaveStarted,
    SaveUnblocked,
    Tier,
    TrainingResumed,
)
from harness.histogram import Histogram

_UNDER_WAY = 64
"""More saves than this are never under way; what else is listed as such has no end."""
_SIZES = 64
"""Of so many of the last checkpoints the size is known, should training resume from one."""


@dataclass(frozen=True, slots=True)
class SaveUnderWay:
    """A save that has begun and is neither durable nor given up."""

    tier: Tier
    step: int
    attempt: int
    started_at_ns: int
    stopped_at_ns: int | None
    """When training stopped for it; None while training goes on."""
    stalled_ns: int | None = None
    """Stops that are over, in all; None before the first of them is, and once they are counted."""


@dataclass(slots=True)
class Saves:
    """The saves of one tier."""

    started: int = 0
    committed: int = 0
    failed: int = 0
    superseded: int = 0
    """Saves that their attempt left behind: neither committed nor failed when the next one saved."""
    bytes: int = 0
    """Of all that were committed."""
    restored_bytes: int = 0
    """Of all that training resumed from, as far as their sizes were known."""
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By step: the attempt that committed it, and its size in bytes."""
    last_bytes: int = 0
    last_step: int | None = None
    """The newest step that is durable; it may since have been deleted."""
    last_at_ns: int = 0
    stalls: Histogram = field(default_factory=Histogram)
    """Training waited: once for each save, with the rest of a copy that had it stop again.

    So a save is counted when nothing more can come: it ended, the next one begins, or its attempt is over.
    """
    commits: Histogram = field(default_factory=Histogram)
    """From the start of the save until it was durable."""
    began: tuple[int, int] | None = None
    """Attempt of the last save, and the productive time of the run when it began."""
    interval_ns: int | None = None
    """Productive time between the last two saves of one attempt."""

    def begin(self, attempt: int, productive_ns: int) -> None:
        """A save begins after so much productive time of the run."""
        self.started += 1
        if self.began is not None and self.began[0] == attempt:
            self.interval_ns = productive_ns - self.began[1]
        self.began = attempt, productive_ns

    def restore(self, step: int, attempt: int | None) -> None:
        """The state of `step` that `attempt` had committed was read."""
        saved_by, size = self.sizes.get(step, (None, 0))
        if saved_by is not None and saved_by == attempt:
            self.restored_bytes += size


@dataclass(frozen=True, slots=True)
class RejectedCheckpoint:
    """A checkpoint that a restore walked past."""

    step: int
    saved_by: int
    rejection: Rejection
    reason: str
    attempt: int
    """The attempt that walked past it."""


@dataclass(slots=True)
class Checkpoints:
    """All saves and rejections of a run."""

    saves: dict[Tier, Saves] = field(default_factory=dict)
    under_way: list[SaveUnderWay] = field(default_factory=list)
    rejected: dict[Rejection, int] = field(default_factory=dict)
    rejections: list[RejectedCheckpoint] = field(default_factory=list)
    deleted: int = 0
    """Checkpoints that retention removed."""
    cut_short: int = 0
    """Saves that a failure ended while training waited for them."""
    restores: dict[Tier, Histogram] = field(default_factory=dict)
    """From the search for a state until it was loaded, by where it came from."""

    def tier(self, tier: Tier) -> Saves:
        """The saves of `tier`."""
        return self.saves.setdefault(tier, Saves())

    def start(self, event: SaveStarted, attempt: int, at_ns: int, productive_ns: int) -> None:
        """A save began, or stops training again. What a dead attempt left under way will not end."""
        if event.rest:
            key = (event.tier, event.step, attempt)
            self.under_way = [
                replace(save, stopped_at_ns=at_ns) if _key(save) == key else save
                for save in self.under_way
            ]
            return
        self.tier(event.tier).begin(attempt, productive_ns)
        for save in self.under_way:
            self.tier(save.tier).superseded += save.attempt != attempt
        self.under_way = [
            self._stalled(save) if save.tier is event.tier else save
            for save in self.under_way
            if save.attempt == attempt
        ]
        self.under_way.append(SaveUnderWay(event.tier, event.step, attempt, at_ns, at_ns))
        del self.under_way[:-_UNDER_WAY]

    def unblock(self, event: SaveUnblocked, attempt: int, at_ns: int) -> None:
        """The copy was taken, or what had to be taken before training could go on."""
        key = (event.tier, event.step, attempt)
        self.under_way = [
            _going_on(save, at_ns) if _key(save) == key else save for save in self.under_way
        ]

    def end_attempt(self) -> None:
        """No save that is under way stops training again; what it still stops for was cut short."""
        self.under_way = [self._stalled(save) for save in self.under_way]

    def commit(self, event: SaveCommitted, attempt: int, at_ns: int) -> None:
        """A save became durable."""
        tally = self.tier(event.tier)
        tally.committed += 1
        tally.bytes += event.bytes
        tally.last_bytes, tally.last_step, tally.last_at_ns = event.bytes, event.step, at_ns
        tally.sizes[event.step] = attempt, event.bytes
        if len(tally.sizes) > _SIZES:
            del tally.sizes[min(tally.sizes)]
        for save in self._end(event, attempt, at_ns):
            tally.commits.add(at_ns - save.started_at_ns)

    def fail(self, event: SaveFailed, attempt: int, at_ns: int) -> None:
        """A save was given up."""
        self.tier(event.tier).failed += 1
        self._end(event, attempt, at_ns)

    def restore(self, event: TrainingResumed, duration_ns: int) -> None:
        """A state was found, verified and loaded; one of no tier is a start from nothing."""
        if event.tier is not None:
            self.restores.setdefault(event.tier, Histogram()).add(duration_ns)
            self.tier(event.tier).restore(event.step, event.saved_by)

    def reject(self, event: CheckpointRejected, attempt: int, keep: int) -> None:
        """A restore walked past a checkpoint; the last `keep` are listed."""
        self.rejected[event.rejection] = self.rejected.get(event.rejection, 0) + 1
        self.rejections.append(
            RejectedCheckpoint(event.step, event.saved_by, event.rejection, event.reason, attempt)
        )
        del self.rejections[:-keep]

    def _end(
        self, event: SaveCommitted | SaveFailed, attempt: int, at_ns: int
    ) -> list[SaveUnderWay]:
        """Take what the event ends off the list; training that still waits for it is about to go on."""
        key = (event.tier, event.step, attempt)
        ended = [save for save in self.under_way if _key(save) == key]
        self.under_way = [save for save in self.under_way if _key(save) != key]
        for save in ended:
            self._stalled(_going_on(save, at_ns))
        return ended

    def _stalled(self, save: SaveUnderWay) -> SaveUnderWay:
        """Count how long training waited for `save`, which will not stop it again."""
        if save.stalled_ns is not None:
            self.tier(save.tier).stalls.add(save.stalled_ns)
        return replace(save, stopped_at_ns=None, stalled_ns=None)


def _key(save: SaveUnderWay) -> tuple[Tier, int, int]:
    return save.tier, save.step, save.attempt


def _going_on(save: SaveUnderWay, at_ns: int) -> SaveUnderWay:
    """Training goes on, if it had stopped for `save`."""
    if save.stopped_at_ns is None:
        return save
    stalled_ns = (save.stalled_ns or 0) + at_ns - save.stopped_at_ns
    return replace(save, stopped_at_ns=None, stalled_ns=stalled_ns)
