"""What is counted besides time: saves, faults, readings, ranks. All of it bounded, all of it from the log.

Counts only rise. Lists hold the last so many; what is no longer in a list is still in the counts.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from harness.events import (
    CheckpointRejected,
    FaultConfirmed,
    FaultDeferred,
    FaultInjected,
    FaultLifted,
    FaultSkipped,
    Rejection,
    SaveCommitted,
    SaveFailed,
    SaveStarted,
    SaveUnblocked,
    Tier,
)

BOUNDS_NS: Sequence[int] = tuple(1_000_000 << power for power in range(21))
"""Upper bounds of the buckets of every `Histogram`: 1 ms, doubling up to 17 min."""


_UNDER_WAY = 64
"""More saves than this are never under way; what else is listed as such has no end."""


@dataclass(slots=True)
class Histogram:
    """Durations by size, in the buckets of `BOUNDS_NS`; the last bucket has no bound."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_NS) + 1))
    total_ns: int = 0
    last_ns: int | None = None

    def add(self, duration_ns: int) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_NS, duration_ns)] += 1
        self.total_ns += duration_ns
        self.last_ns = duration_ns

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure that training read off after `step`."""

    step: int
    value: float


@dataclass(slots=True)
class Rank:
    """What is known of a rank from its own file; changed in place, for it changes once a second."""

    pid: int = 0
    start_ticks: int = 0
    attempt: int = 0
    """The last attempt that it joined."""
    joined_at_ns: int = 0
    timed_step: int | None = None
    """The step of the last `StepTimed`, and its figures."""
    own_ns: int = 0
    wait_ns: int = 0
    digested_step: int | None = None
    """The step of the last `StateDigested`, and its digests by component."""
    digests: Mapping[str, str] = field(default_factory=dict)


# ── saves ───────────────────────────────────────────────────────────────────────────────────────


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


# ── helpers ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Helper:
    """A process that serves the job, and how often another took its place."""

    restarts: int = 0
    reason: str = ""
    """What the last one died of."""

    def restart(self, reason: str) -> None:
        """There is another."""
        self.restarts += 1
        self.reason = reason


# ── faults ──────────────────────────────────────────────────────────────────────────────────────


class FaultState(StrEnum):
    """How far a fault of the tape has come."""

    DEFERRED = "deferred"
    INJECTED = "injected"
    CONFIRMED = "confirmed"
    LIFTED = "lifted"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the tape and what became of it."""

    id: str
    state: FaultState
    kind: str = ""
    target: str = ""
    detail: str = ""
    """What the injector said last: why deferred or skipped, how confirmed."""
    deferred: bool = False
    """It had to wait for its target."""
    injected_at_ns: int | None = None
    attempt: int | None = None
    """The attempt that it hit."""
    detected_at_ns: int | None = None
    """When the attempt that it hit was declared failed, if it was."""


FaultEvent = FaultDeferred | FaultInjected | FaultConfirmed | FaultLifted | FaultSkipped


@dataclass(slots=True)
class Faults:
    """All faults that the injector spoke of."""

    records: list[Fault] = field(default_factory=list)
    """The last so many, in the order in which they were first heard of."""
    injected: dict[str, int] = field(default_factory=dict)
    """How many, by kind."""
    states: dict[FaultState, int] = field(default_factory=dict)
    """How many ever came to each state."""
    detections: dict[str, Histogram] = field(default_factory=dict)
    """From the injection to the detection of the failure, by kind."""

    def observe(self, event: FaultEvent, attempt: int, at_ns: int, keep: int) -> None:
        """The injector said something of a fault; the last `keep` are listed."""
        place = next((i for i, f in enumerate(self.records) if f.id == event.id), None)
        if place is None:
            place = len(self.records)
            self.records.append(Fault(event.id, FaultState.DEFERRED))
        before = self.records[place]
        after = _changed(before, event, attempt, at_ns)
        self.records[place] = after
        self.states[after.state] = self.states.get(after.state, 0) + 1
        if isinstance(event, FaultInjected):
            self.injected[event.kind] = self.injected.get(event.kind, 0) + 1
        del self.records[:-keep]

    def hit(self, attempt: int) -> bool:
        """Whether any fault acted on `attempt`."""
        return any(
            fault.attempt == attempt and fault.state is not FaultState.SKIPPED
            for fault in self.records
        )

    def detect(self, attempt: int, at_ns: int) -> tuple[str, ...]:
        """Attempt `attempt` failed: gives the ids of the faults that stood in it."""
        led: list[str] = []
        for place, fault in enumerate(self.records):
            standing = fault.state in (FaultState.INJECTED, FaultState.CONFIRMED)
            # A call to the storage that was spoilt is over with it, and most are survived.
            standing = standing and fault.target.split(" ")[0] != "store"
            if standing and fault.attempt == attempt and fault.injected_at_ns is not None:
                led.append(fault.id)
                self.records[place] = replace(fault, detected_at_ns=at_ns)
                latency_ns = at_ns - fault.injected_at_ns
                self.detections.setdefault(fault.kind, Histogram()).add(latency_ns)
        return tuple(led)


def _changed(fault: Fault, event: FaultEvent, attempt: int, at_ns: int) -> Fault:
    match event:
        case FaultDeferred():
            return replace(fault, state=FaultState.DEFERRED, deferred=True, detail=event.reason)
        case FaultInjected():
            return replace(
                fault,
                state=FaultState.INJECTED,
                kind=event.kind,
                target=event.target,
                injected_at_ns=at_ns,
                attempt=attempt,
                detected_at_ns=None,
            )
        case FaultConfirmed():
            return replace(fault, state=FaultState.CONFIRMED, detail=event.detail)
        case FaultLifted():
            return replace(fault, state=FaultState.LIFTED)
        case FaultSkipped():
            return replace(fault, state=FaultState.SKIPPED, detail=event.reason)
