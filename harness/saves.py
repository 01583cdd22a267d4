"""What is counted of saves, checkpoints and restores. All of it bounded, all of it from the log.

Counts only rise. Lists hold the last so many; what is no longer in a list is still in the counts.
"""

from dataclasses import dataclass, field

from harness.events import (
    CheckpointRejected,
    Rejection,
    SaveCommitted,
    SaveFailed,
    SaveStarted,
    SaveUnblocked,
    Tier,
)
from harness.histogram import Histogram

_UNDER_WAY = 64
"""More saves than this are never under way; what else is listed as such has no end."""


@dataclass(frozen=True, slots=True)
class SaveUnderWay:
    """A save that has begun and is neither durable nor given up."""

    tier: Tier
    step: int
    attempt: int
    started_at_ns: int


@dataclass(slots=True)
class Saves:
    """The saves of one tier."""

    started: int = 0
    committed: int = 0
    failed: int = 0
    bytes: int = 0
    """Of all that were committed."""
    last_bytes: int = 0
    last_step: int | None = None
    """The newest step that is durable; it may since have been deleted."""
    last_at_ns: int = 0
    stalls: Histogram = field(default_factory=Histogram)
    """Training waited."""
    commits: Histogram = field(default_factory=Histogram)
    """From the start of the save until it was durable."""


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

    def start(self, event: SaveStarted, attempt: int, at_ns: int) -> None:
        """A save began. What a dead attempt left under way will not end."""
        self.tier(event.tier).started += 1
        self.under_way = [save for save in self.under_way if save.attempt == attempt]
        self.under_way.append(SaveUnderWay(event.tier, event.step, attempt, at_ns))
        del self.under_way[:-_UNDER_WAY]

    def unblock(self, event: SaveUnblocked, attempt: int, at_ns: int) -> None:
        """The copy was taken."""
        for save in self.under_way:
            if (save.tier, save.step, save.attempt) == (event.tier, event.step, attempt):
                self.tier(event.tier).stalls.add(at_ns - save.started_at_ns)

    def commit(self, event: SaveCommitted, attempt: int, at_ns: int) -> None:
        """A save became durable."""
        tally = self.tier(event.tier)
        tally.committed += 1
        tally.bytes += event.bytes
        tally.last_bytes, tally.last_step, tally.last_at_ns = event.bytes, event.step, at_ns
        for save in self._end(event, attempt):
            tally.commits.add(at_ns - save.started_at_ns)

    def fail(self, event: SaveFailed, attempt: int) -> None:
        """A save was given up."""
        self.tier(event.tier).failed += 1
        self._end(event, attempt)

    def restore(self, tier: Tier, duration_ns: int) -> None:
        """A state was found, verified and loaded."""
        self.restores.setdefault(tier, Histogram()).add(duration_ns)

    def reject(self, event: CheckpointRejected, attempt: int, keep: int) -> None:
        """A restore walked past a checkpoint; the last `keep` are listed."""
        self.rejected[event.rejection] = self.rejected.get(event.rejection, 0) + 1
        self.rejections.append(
            RejectedCheckpoint(event.step, event.saved_by, event.rejection, event.reason, attempt)
        )
        del self.rejections[:-keep]

    def _end(self, event: SaveCommitted | SaveFailed, attempt: int) -> list[SaveUnderWay]:
        """Take what the event ends off the list."""
        key = (event.tier, event.step, attempt)
        ended = [s for s in self.under_way if (s.tier, s.step, s.attempt) == key]
        self.under_way = [s for s in self.under_way if (s.tier, s.step, s.attempt) != key]
        return ended
