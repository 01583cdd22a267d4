"""Where the time of a job went, by its step log alone: the same for everybody's jobs. Pure.

Goodput is the time spent in steps that were kept, over the time from the first finished step to the end.
A step lasts from the start of its forward to the end of its update, so saves are no work; the first step
of an attempt is none either, as in the harness' own report; a step that was done twice counts the second
time.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Step:
    """A line of a step log."""

    step: int
    began_s: float
    ended_s: float
    pid: int
    """Rank 0's: another one is another attempt."""


@dataclass(frozen=True, slots=True)
class Split:
    """Where the time between two ends of steps went, in seconds. The parts sum to all of it."""

    kept_s: float = 0.0
    lost_s: float = 0.0
    """In steps that were done once more."""
    back_s: float = 0.0
    """From an attempt's last finished step to the end of the next one's first."""
    between_s: float = 0.0
    """Between steps: saves, logs, looking."""
    kept: int = 0
    """Steps."""

    def __add__(self, other: "Split") -> "Split":
        """Of both times together."""
        return Split(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    @property
    def goodput(self) -> float:
        """Share of the time that went into kept steps."""
        whole_s = self.kept_s + self.lost_s + self.back_s + self.between_s
        return self.kept_s / whole_s if whole_s else 0.0


def split(steps: Sequence[Step], began_s: float, ended_s: float) -> Split:
    """Of the time from one end of a step to another; see above."""
    kept = _kept(steps)
    done = [it for it in enumerate(steps) if began_s <= it[1].ended_s <= ended_s]
    found = Split()
    for (_, before), (place, one) in pairwise(done):
        if one.pid != before.pid:
            found = replace(found, back_s=found.back_s + one.ended_s - before.ended_s)
            continue
        found = replace(found, between_s=found.between_s + one.began_s - before.ended_s)
        took_s = one.ended_s - one.began_s
        if place in kept:
            found = replace(found, kept_s=found.kept_s + took_s, kept=found.kept + 1)
        else:
            found = replace(found, lost_s=found.lost_s + took_s)
    return found


def _kept(steps: Sequence[Step]) -> set[int]:
    """The places of those that no later attempt went back behind."""
    kept, lowest = set(), math.inf
    for place in reversed(range(len(steps))):
        if steps[place].step < lowest:
            lowest = steps[place].step
            kept.add(place)
    return kept
