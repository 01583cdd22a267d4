"""What a log tells of the kills in it: each with the step that it was recovered from by. Pure."""

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise

from harness.events import Entry, FaultInjected, StepFinished


def recovered(entries: Sequence[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """Each kill, with the first step of any later attempt."""
    first_steps: dict[int, Entry] = {}
    for entry in entries:
        if isinstance(entry.event, StepFinished):
            first_steps.setdefault(entry.attempt, entry)
    for entry in entries:
        if isinstance(entry.event, FaultInjected):
            later = [attempt for attempt in first_steps if attempt > entry.attempt]
            if later:
                yield entry, first_steps[min(later)]


def median_step_s(entries: Sequence[Entry]) -> float:
    """Between two steps of an attempt."""
    steps = [entry for entry in entries if isinstance(entry.event, StepFinished)]
    gaps_ns = [b.at_ns - a.at_ns for a, b in pairwise(steps) if a.attempt == b.attempt]
    return statistics.median(gaps_ns) / 1e9 if gaps_ns else 0.0
