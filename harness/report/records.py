"""What a report says of each failure, of each fault, and of what was saved.

Durations are integer nanoseconds until they leave here; `to_json` is their public form, in seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.events import IntervalChosen, Tier
from harness.recovery import Stage
from harness.report.spread import number, seconds
from harness.sightings import FaultState


@dataclass(frozen=True, slots=True)
class Comeback:
    """A failed attempt, and how the run came back from it."""

    number: int
    """Counts the failures of the run from 1."""
    attempt: int
    """The one that failed."""
    failed_at_ns: int
    """On the axis of the segments."""
    cause: str
    rank: int | None
    reason: str
    duration_ns: int | None
    """From the last finished step to the first one after; None if there was none (yet)."""
    since_fault_ns: int | None
    """The same from the injection of the fault that led to it; None where no fault of the tape did."""
    regaining_ns: int | None
    """From that first step until the run was as far again as before; None if it was not (yet)."""
    lost_steps: int
    lost_ns: int
    resumed_step: int | None
    tier: str
    """Where its state was; empty for a start from nothing."""
    burnt: bool
    faults: Sequence[str]
    stages_ns: Mapping[Stage, int]

    def to_json(self) -> dict[str, Any]:
        """In seconds."""
        return {
            "number": self.number,
            "attempt": self.attempt,
            "cause": self.cause,
            "rank": self.rank,
            "reason": self.reason,
            "duration_s": seconds(self.duration_ns),
            "since_fault_s": seconds(self.since_fault_ns),
            "regaining_s": seconds(self.regaining_ns),
            "lost_steps": self.lost_steps,
            "lost_s": seconds(self.lost_ns),
            "resumed_step": self.resumed_step,
            "tier": self.tier,
            "burnt": self.burnt,
            "faults": list(self.faults),
            "phase_s": {stage.value: seconds(ns) for stage, ns in self.stages_ns.items()},
        }


@dataclass(frozen=True, slots=True)
class FaultFate:
    """A fault of the tape and what became of it."""

    id: str
    kind: str
    target: str
    tape_s: float | None
    """When the tape has it fall due, in tape time; None without a tape."""
    at_ns: int | None
    """Since the run's start; None if it was never injected."""
    state: str
    """A `FaultState`, or `planned` while nobody has spoken of it."""
    deferred: bool
    detail: str
    comeback: int | None
    """The number of the failure that it led to."""

    @property
    def became(self) -> str:
        """What became of it, in words."""
        words = [self.state]
        if self.deferred and self.state != FaultState.DEFERRED:
            words.insert(0, "deferred")
        if self.comeback is not None:
            words.append(f"led to restart {self.comeback}")
        elif self.detail:
            words.append(self.detail)
        return ", ".join(words)

    def to_json(self) -> dict[str, Any]:
        """In seconds."""
        return {
            "id": self.id,
            "kind": self.kind,
            "target": self.target,
            "tape_s": self.tape_s,
            "at_s": seconds(self.at_ns),
            "state": self.state,
            "deferred": self.deferred,
            "detail": self.detail,
            "restart": self.comeback,
            "became": self.became,
        }


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """What was saved."""

    committed: int
    failed: int
    rejected: Sequence[str]
    """A line for each checkpoint that a restore walked past."""
    last_step: int | None
    bytes: int
    stall_ns: int
    """Training waited, all together."""
    commits: int
    commit_ns: int
    """From the start of each save until it was durable, all together."""
    intervals: Mapping[Tier, IntervalChosen] = field(default_factory=dict)
    """The last choice of each tier that chooses."""
    copies: int = 0
    """Taken in memory; what is committed is in the storage."""

    def to_json(self) -> dict[str, Any]:
        """In seconds."""
        return {
            "committed": self.committed,
            "copies": self.copies,
            "failed": self.failed,
            "rejected": len(self.rejected),
            "rejections": list(self.rejected),
            "last_step": self.last_step,
            "bytes": self.bytes,
            "stall_s": seconds(self.stall_ns),
            "mean_commit_s": seconds(self.commit_ns // self.commits) if self.commits else None,
            "intervals": {
                tier.value: {
                    "steps": one.steps,
                    "seconds": number(one.seconds),
                    "optimal_s": None if one.optimal_s is None else number(one.optimal_s),
                    "inputs": {name: number(value) for name, value in one.inputs.items()},
                    "reason": one.reason,
                }
                for tier, one in self.intervals.items()
            },
        }
