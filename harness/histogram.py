"""Durations by size: what Prometheus calls a histogram. The bounds stand here alone."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

BOUNDS_NS: Sequence[int] = tuple(1_000_000 << power for power in range(21))
"""Upper bounds of the buckets of every `Histogram`: 1 ms, doubling up to 17 min."""


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
