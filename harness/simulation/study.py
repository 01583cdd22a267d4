"""Which interval is best, as far as simulated runs can tell: the same failures for every interval.

An interval is told apart from the best when its runs are worse, seed by seed, beyond chance: by
Student's test of the differences at 5 %. What is not told apart is one set, and the answer.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.simulation.asked import Asked
from harness.simulation.job import SimulatedJob
from harness.simulation.loop import Costs
from harness.simulation.options import Options

_STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447}
"""97.5 % points of Student's t with few degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Point:
    """An interval and the goodput of its runs."""

    interval_s: float
    mean: float
    low: float
    high: float
    """Nine runs in ten are within `low` and `high`, or all where they are few."""
    error: float | None
    """Standard error of the mean; None of one run."""
    in_set: bool
    """Cannot be told apart from the best."""


@dataclass(frozen=True, slots=True)
class Study:
    """All intervals."""

    points: Sequence[Point]
    best: Point

    @property
    def alike(self) -> Sequence[Point]:
        """Those that cannot be told apart from the best, which is one of them."""
        return [point for point in self.points if point.in_set]


def study(asked: Asked, progress: Callable[[str], None]) -> Study:
    """Simulate every interval under every seed; `progress` is told of each interval that takes time."""
    goodputs = _quickly(asked) if asked.options == Options() else _one_by_one(asked, progress)
    return judged(asked.intervals_s, goodputs)


def judged(intervals_s: Sequence[float], goodputs: Sequence[Sequence[float]]) -> Study:
    """What the goodputs, by interval and then by seed, say of the intervals."""
    means = [statistics.fmean(row) for row in goodputs]
    best = means.index(max(means))
    points = [
        Point(interval_s, mean, *_band(row), _error(row), not _worse(row, goodputs[best]))
        for interval_s, mean, row in zip(intervals_s, means, goodputs, strict=True)
    ]
    return Study(points, points[best])


def _quickly(asked: Asked) -> Sequence[Sequence[float]]:
    from harness.simulation.sweep import sweep

    told = sweep(
        asked.failures,
        asked.intervals_s,
        save_s=asked.save_s,
        restart_s=asked.restart_s,
        horizon_s=asked.horizon_s,
        seeds=asked.seeds,
    )
    rows: Sequence[Sequence[float]] = told.goodput.tolist()
    return rows


def _one_by_one(asked: Asked, progress: Callable[[str], None]) -> Sequence[Sequence[float]]:
    rows = []
    for count, interval_s in enumerate(asked.intervals_s, 1):
        progress(f"interval {count} of {len(asked.intervals_s)}: {interval_s / 60:.3g} min")
        costs = Costs(interval_s, asked.save_s, asked.restart_s, asked.horizon_s)
        jobs = [SimulatedJob(costs, asked.failures, asked.options, seed) for seed in asked.seeds]
        rows.append([job.goodput() for job in jobs])
    progress("")
    return rows


def _band(row: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(row)
    aside = len(ordered) // 20
    return ordered[aside], ordered[-1 - aside]


def _error(row: Sequence[float]) -> float | None:
    return statistics.stdev(row) / math.sqrt(len(row)) if len(row) > 1 else None


def _worse(row: Sequence[float], best: Sequence[float]) -> bool:
    differences = [other - one for one, other in zip(row, best, strict=True)]
    error = _error(differences)
    if error is None:
        return False  # one run tells nothing apart
    return statistics.fmean(differences) > student(len(row) - 1) * error


def student(freedom: int) -> float:
    """The 97.5 % point of Student's t (Cornish and Fisher's expansion; to 0.002 from 7 on)."""
    if freedom in _STUDENT:
        return _STUDENT[freedom]
    z = 1.959964
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return z + first + second + third
