"""Whether a rank is slow, which, and at what; or whether all of them are: pure.

Ranks are compared over the same steps. By chance alone each is as likely as any other to be the
slowest, and at most half of them are slower than the lower median, however heavy the tails of their
times; so the number of comparisons in which a rank was one or the other has a known law.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from statistics import median, median_low

COMPARED = 40
"""Comparisons that a verdict rests on: about as many seconds, or steps where those are longer."""
FALSE_ALARMS_PER_DAY = 0.01
"""Verdicts against a rank that a job without a straggler may come to in a day: one in 100 job-days."""
COMPARISONS_PER_DAY = 86_400
"""At most one a second."""
LEAST_SHARE = 0.05
"""Of its own time: a rank that is surely slower by less is not worth a name."""
LEAST_SLOWDOWN = 1.2
"""A job that is slower than its own reference by less counts as being as fast."""


class Lag(StrEnum):
    """What a slow rank is slow at."""

    DATA = "data"
    """Getting its batches."""
    COMPUTE = "compute"
    """Forward, backward, optimizer."""
    LOOP = "loop"
    """The loop's own code on that rank."""


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's part of the steps that are compared; means of a step."""

    own_ns: int
    wait_ns: int
    data_ns: int
    compute_ns: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """All ranks over the same steps. Lists are by rank."""

    usual_ns: int
    """The lower median of the ranks' own times."""
    pace_ns: int
    """What a step would have taken without the slowest rank's delay."""
    late_ns: list[int]
    """Each rank's own time minus the usual one; of two ranks the faster is the usual one."""
    late_data_ns: list[int]
    late_compute_ns: list[int]
    """The same of the parts of its own time."""

    @property
    def wait_ns(self) -> int:
        """What the job waits in each step for its slowest rank."""
        return max(self.late_ns)


def compare(shares: Sequence[Share]) -> Comparison:
    """Compare the ranks of a job, at least one."""
    own_ns = [share.own_ns for share in shares]
    usual_ns, late_ns = _lateness(own_ns)
    _, late_data_ns = _lateness([share.data_ns for share in shares])
    _, late_compute_ns = _lateness([share.compute_ns for share in shares])
    whole_ns = median_low([share.own_ns + share.wait_ns for share in shares])
    pace_ns = max(usual_ns, whole_ns - max(late_ns))
    return Comparison(usual_ns, pace_ns, late_ns, late_data_ns, late_compute_ns)


def _lateness(ranks_ns: list[int]) -> tuple[int, list[int]]:
    """The lower median, and how far each is above it."""
    usual_ns = median_low(ranks_ns)
    return usual_ns, [ns - usual_ns for ns in ranks_ns]


# ── who ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Limits:
    """In how many of `COMPARED` comparisons a rank must stand out to be named."""

    slowest: int
    """As the slowest of all."""
    above: int
    """Above the lower median: several ranks that are slow together share being the slowest."""


@cache
def limits(ranks: int) -> Limits:
    """The least numbers that keep `FALSE_ALARMS_PER_DAY`, half of it for each way to stand out.

    A sum over all ranks and all comparisons of a day bounds it, however much they overlap; what it
    takes for granted is that comparisons are independent, and each rank as fast as the others.
    """
    most = FALSE_ALARMS_PER_DAY / 2 / COMPARISONS_PER_DAY / ranks
    return Limits(_least(1 / ranks, most), _least((ranks // 2) / ranks, most))


def _least(chance: float, most: float) -> int:
    """The least count that is reached with a probability of `most` when each one has `chance`."""
    tail, count = 0.0, COMPARED + 1
    while count > COMPARED // 2 + 1:
        hits = count - 1
        tail += math.comb(COMPARED, hits) * chance**hits * (1 - chance) ** (COMPARED - hits)
        if tail > most:
            break
        count = hits
    return count


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that the job waits for."""

    rank: int
    lag: Lag
    delay_ns: int
    """In each step, in the median."""
    share: float
    """Of the usual own time."""


@dataclass(slots=True)
class Watch:
    """The last comparisons of a job, and in how many of them each rank stood out."""

    window: list[Comparison] = field(default_factory=list)
    slowest: list[int] = field(default_factory=list)
    above: list[int] = field(default_factory=list)

    def add(self, comparison: Comparison) -> None:
        """Take in one more; all of a watch are of the same ranks."""
        if not self.window:
            self.slowest = [0] * len(comparison.late_ns)
            self.above = [0] * len(comparison.late_ns)
        self.window.append(comparison)
        self._count(comparison, 1)
        if len(self.window) > COMPARED:
            self._count(self.window.pop(0), -1)

    def stands_out(self) -> bool:
        """Some rank may have to be named."""
        if len(self.window) < COMPARED:
            return False
        least = limits(len(self.slowest))
        return max(self.slowest) >= least.slowest or max(self.above) >= least.above

    def stragglers(self, named: Sequence[int] = ()) -> list[Straggler]:
        """Who is slow, the slowest first; those `named` before stay so until half of it is gone."""
        if len(self.window) < COMPARED:
            return []
        least = limits(len(self.slowest))
        found = [
            straggler
            for rank, (slowest, above) in enumerate(zip(self.slowest, self.above, strict=True))
            if (rank in named and above > COMPARED // 2)
            or slowest >= least.slowest
            or above >= least.above
            if (straggler := self._judged(rank)).share >= LEAST_SHARE / (2 if rank in named else 1)
        ]
        return sorted(found, key=lambda straggler: -straggler.share)

    def _count(self, comparison: Comparison, by: int) -> None:
        late_ns = comparison.late_ns
        for rank, ns in enumerate(late_ns):
            if ns > 0:
                self.above[rank] += by
        most_ns = max(late_ns)
        if most_ns > 0 and late_ns.count(most_ns) == 1:
            self.slowest[late_ns.index(most_ns)] += by

    def _judged(self, rank: int) -> Straggler:
        late_ns = median(one.late_ns[rank] for one in self.window)
        data_ns = median(one.late_data_ns[rank] for one in self.window)
        compute_ns = median(one.late_compute_ns[rank] for one in self.window)
        usual_ns = median(one.usual_ns for one in self.window)
        loop_ns = late_ns - data_ns - compute_ns
        parts = {Lag.COMPUTE: compute_ns, Lag.DATA: data_ns, Lag.LOOP: loop_ns}
        lag = max(parts, key=lambda part: parts[part])
        return Straggler(rank, lag, round(late_ns), late_ns / max(1, usual_ns))


# ── everyone ────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Reference:
    """How fast the job has been at its best, over `COMPARED` comparisons in a row, and is now."""

    block_ns: list[int] = field(default_factory=list)
    """Of a step without its straggler, since the last block was full."""
    best_ns: int = 0
    now_ns: int = 0
    """In the last full block."""
    noise: float = 0.0
    """Spread of the steps within the last blocks, as a standard deviation over the median."""

    def add(self, pace_ns: int) -> bool:
        """Take in one more; True when that fills a block."""
        self.block_ns.append(pace_ns)
        if len(self.block_ns) < COMPARED:
            return False
        middle = median(self.block_ns)
        spread = median(abs(ns - middle) for ns in self.block_ns)
        self.now_ns = max(1, round(middle))
        noise = 1.4826 * spread / self.now_ns  # of a normal law
        self.noise = noise if self.best_ns == 0 else self.noise + (noise - self.noise) / 8
        self.best_ns = min(self.best_ns or self.now_ns, self.now_ns)
        self.block_ns = []
        return True

    @property
    def slowdown(self) -> float | None:
        """Time of a step now over that at its best; None before it is known."""
        return self.now_ns / self.best_ns if self.best_ns else None

    @property
    def is_slow(self) -> bool:
        """The job is slower than it has been, by more than chance can make of it.

        The median of a block has a standard deviation of 0.2 noise, and the best of all blocks of
        a month lies within five of it.
        """
        slowdown = self.slowdown
        return slowdown is not None and slowdown >= max(LEAST_SLOWDOWN, 1 + 2 * self.noise)
