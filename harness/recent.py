"""What a page shows beside the totals: the last minutes phase by phase, and the losses that were read.

Both are bounded, whatever the run's length: old time falls out, and a long curve gets coarser.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.segments import Segment, append, mark_lost
from harness.tallies import Reading

WINDOW_NS = 15 * 60 * 1_000_000_000
MOST_SEGMENTS = 2000
"""Runs that change phase many times a second are remembered for less than the window."""
MOST_READINGS = 512


@dataclass(slots=True)
class Curve:
    """Losses by step, so thin that they are never more than `MOST_READINGS`; the newest is among them."""

    readings: list[Reading] = field(default_factory=list)
    every: int = 1
    """Of so many steps one is kept; it doubles whenever there are too many."""

    def add(self, step: int, value: float) -> None:
        """A loss was read; those of later steps were lost, and of the same step it is the better."""
        held = self.readings
        while held and held[-1].step >= step:
            held.pop()
        every = self.every
        if len(held) > 1 and held[-1].step // every == held[-2].step // every:
            held[-1] = Reading(step, value)
            return
        held.append(Reading(step, value))
        while len(self.readings) > MOST_READINGS:
            self.every *= 2
            self.readings = _thinned(self.readings, self.every)


def _thinned(readings: Sequence[Reading], every: int) -> list[Reading]:
    """The first reading of each `every` steps, and the last of all."""
    first = {one.step // every: one for one in reversed(readings)}
    kept = list(reversed(first.values()))
    return kept if kept[-1].step == readings[-1].step else [*kept, readings[-1]]


@dataclass(slots=True)
class Recent:
    """The newest part of a run's log."""

    segments: list[Segment] = field(default_factory=list)
    """Settled time of the last minutes, in order and without a gap."""
    losses: Curve = field(default_factory=Curve)

    def settle(self, settled: Sequence[Segment]) -> None:
        """Time was counted; what is older than the window goes."""
        segments = self.segments
        before = len(segments)
        for segment in settled:
            append(segments, segment)
        if len(segments) == before:
            return
        since_ns = segments[-1].end_ns - WINDOW_NS
        while len(segments) > MOST_SEGMENTS or segments[0].end_ns < since_ns:
            del segments[0]

    def lose(self, since_ns: int) -> None:
        """Work since then is lost."""
        mark_lost(self.segments, since_ns)
