"""The textbook loop: work, save, work, save, and after each failure a restart. Nothing else happens.

Failures are drawn at the start and again when a restart ends, so none hits a restart; one that
comes before a save has ended loses the whole interval. The last segment is not clipped.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from harness.quantities import checked


class Kind(StrEnum):
    """What a stretch of time is spent on: the coarse view of `harness.goodput`."""

    WORK = "work"
    CHECKPOINT = "checkpoint"
    LOST = "lost"
    RESTART = "restart"


class Stretch(NamedTuple):
    """A stretch of simulated time, in seconds since the start."""

    kind: Kind
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Costs:
    """What the textbook loop knows of a job."""

    interval_s: float
    """Work between two saves."""
    save_s: float
    """Training waits for a save."""
    restart_s: float
    horizon_s: float
    """No interval begins at or after it."""

    def __post_init__(self) -> None:
        checked("interval_s", self.interval_s, above=0)
        checked("save_s", self.save_s, at_least=0)
        checked("restart_s", self.restart_s, at_least=0)
        checked("horizon_s", self.horizon_s, above=0)


@dataclass(slots=True)
class Walk:
    """What came of a walk through the loop."""

    stretches: list[Stretch] = field(default_factory=list)
    failures_s: list[float] = field(default_factory=list)
    end_s: float = 0.0

    def counts(self) -> dict[Kind, int]:
        """How many stretches of each kind there are."""
        kinds = [stretch.kind for stretch in self.stretches]
        return {kind: kinds.count(kind) for kind in Kind}

    def totals_s(self, until_s: float | None = None) -> dict[Kind, float]:
        """Seconds by kind, added up in order; what lies beyond `until_s` is clipped."""
        totals = dict.fromkeys(Kind, 0.0)
        for kind, start_s, end_s in self.stretches:
            last_s = end_s if until_s is None else min(end_s, until_s)
            totals[kind] += max(0.0, last_s - start_s)
        return totals


def walk(costs: Costs, next_failure_s: Callable[[float], float]) -> Walk:
    """Walk through a whole run; `next_failure_s(now)` is the instant of the first failure after now."""
    told = Walk()
    add = told.stretches.append
    now_s, fail_s = 0.0, next_failure_s(0.0)
    while now_s < costs.horizon_s:
        worked_s = now_s + costs.interval_s
        saved_s = worked_s + costs.save_s
        if fail_s >= saved_s:
            add(Stretch(Kind.WORK, now_s, worked_s))
            add(Stretch(Kind.CHECKPOINT, worked_s, saved_s))
            now_s = saved_s
            continue
        add(Stretch(Kind.LOST, now_s, fail_s))
        told.failures_s.append(fail_s)
        now_s = fail_s + costs.restart_s
        add(Stretch(Kind.RESTART, fail_s, now_s))
        fail_s = next_failure_s(now_s)
    told.end_s = now_s
    return told
