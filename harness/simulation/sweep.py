"""The goodput of very many simulated runs, without walking through any of them.

Between two failures the number of committed intervals is a division. Failures do not depend on the
interval, so one set of them serves every interval: what differs between intervals is no chance.
The counts are those of `loop.py`; sums differ in the last digits, for they add up in another order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.quantities import checked
from harness.simulation.cycles import Counts, Cycles, Floats, clocks_s, divided
from harness.simulation.failures import Failures, Renewal
from harness.simulation.laws import Exponential
from harness.simulation.loop import Costs, Kind


@dataclass(frozen=True, slots=True)
class Sweep:
    """What came of every run; rows are intervals, columns are seeds."""

    intervals_s: Sequence[float]
    seeds: Sequence[int]
    committed: Counts
    """Intervals of work that were saved."""
    failures: Counts
    end_s: Floats
    """The end of the last stretch of each run."""
    lost_s: Floats
    save_s: float
    restart_s: float

    @property
    def work_s(self) -> Floats:
        """Work that was kept."""
        work: Floats = np.multiply(self.committed, np.asarray(self.intervals_s)[:, None])
        return work

    @property
    def goodput(self) -> Floats:
        """The share of each run that was kept."""
        share: Floats = np.divide(self.work_s, self.end_s)
        return share

    def totals_s(self, place: int, column: int) -> dict[str, float]:
        """Seconds by kind of one run."""
        committed, failures = self.committed[place, column], self.failures[place, column]
        return {
            "work": float(committed * self.intervals_s[place]),
            "checkpoint": float(committed * self.save_s),
            "lost": float(self.lost_s[place, column]),
            "restart": float(failures * self.restart_s),
        }


def sweep(
    failures: Failures,
    intervals_s: Sequence[float],
    *,
    save_s: float,
    restart_s: float,
    horizon_s: float,
    seeds: Sequence[int],
) -> Sweep:
    """Every interval under the failures of every seed. What it needs of memory is its result.

    Raises `ValueError` for values that cannot be, and for nothing to simulate.
    """
    if not intervals_s or not seeds:
        raise ValueError("no interval or no seed to simulate: give at least one of each")
    for interval_s in intervals_s:
        checked("interval_s", interval_s, above=0)
    checked("save_s", save_s, at_least=0)
    checked("restart_s", restart_s, at_least=0)
    checked("horizon_s", horizon_s, above=0)
    shape = (len(intervals_s), len(seeds))
    told = Sweep(
        intervals_s,
        seeds,
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
        np.zeros(shape),
        np.zeros(shape),
        save_s,
        restart_s,
    )
    never_s = horizon_s + 2 * (max(intervals_s) + save_s)
    filler_s = (min(intervals_s) + save_s) / 2
    first = 0
    while first < len(seeds):
        clocks = clocks_s(failures, seeds[first:], restart_s, horizon_s, never_s)
        columns = slice(first, first + len(clocks))
        cycles = divided(clocks, horizon_s, filler_s)
        for place in range(len(intervals_s)):
            _count(told, place, columns, cycles, horizon_s)
        first += len(clocks)
    return told


def simulated(costs: Costs, mtbf_s: float, seed: int) -> dict[str, Any]:
    """What the sweep says of one run, under the names that reference outputs have for it."""
    told = sweep(
        Renewal(Exponential(mtbf_s)),
        [costs.interval_s],
        save_s=costs.save_s,
        restart_s=costs.restart_s,
        horizon_s=costs.horizon_s,
        seeds=[seed],
    )
    committed, failures = int(told.committed[0, 0]), int(told.failures[0, 0])
    counts = (committed, committed, failures, failures)
    return {
        "failures": failures,
        "segments": sum(counts),
        "count": dict(zip(Kind, counts, strict=True)),
        "end_s": float(told.end_s[0, 0]),
        "total_s": told.totals_s(0, 0),
        "goodput": float(told.goodput[0, 0]),
    }


# ── intervals ───────────────────────────────────────────────────────────────────────────────────


def _count(told: Sweep, place: int, columns: slice, cycles: Cycles, horizon_s: float) -> None:
    """Fill in the runs of one interval, for the seeds of `columns`."""
    interval_s, save_s = told.intervals_s[place], told.save_s
    whole_s = interval_s + save_s
    in_whole = _committed(cycles, interval_s, save_s).sum(axis=1)
    in_last, finishes = _last(cycles, interval_s, save_s, horizon_s)
    committed = (in_whole + in_last).astype(np.int64)
    told.committed[place, columns] = committed
    told.failures[place, columns] = cycles.whole + ~finishes
    finish_s = cycles.last_start_s + in_last * whole_s
    told.end_s[place, columns] = np.where(finishes, finish_s, cycles.last_end_s)
    lost_in_last_s = np.where(finishes, 0.0, cycles.last_fail_s - finish_s)
    told.lost_s[place, columns] = cycles.up_s - in_whole * whole_s + lost_in_last_s


def _committed(cycles: Cycles, interval_s: float, save_s: float) -> Floats:
    """How many intervals are saved in each of the cycles that end before the horizon."""
    whole_s = interval_s + save_s
    quotient, counts = cycles.scratch
    np.multiply(cycles.gaps_s, 1 / whole_s, out=quotient)
    np.floor(quotient, out=counts)
    quotient -= counts
    doubt = _doubt(cycles, whole_s)
    if quotient.size and (quotient.min() < doubt or quotient.max() > 1 - doubt):
        for row, column in np.argwhere((quotient < doubt) | (quotient > 1 - doubt)):
            start_s, fail_s = cycles.starts_s[row, column], cycles.fails_s[row, column]
            walked = _walk(start_s, fail_s, interval_s, save_s, np.inf)
            counts[row, column] = walked[0]
    return counts


def _last(
    cycles: Cycles, interval_s: float, save_s: float, horizon_s: float
) -> tuple[Floats, NDArray[np.bool_]]:
    """How many intervals are saved in each last cycle, and whether it comes to the horizon unharmed."""
    whole_s = interval_s + save_s
    fits = (cycles.last_fail_s - cycles.last_start_s) / whole_s
    needed = (horizon_s - cycles.last_start_s) / whole_s
    saved, most = np.floor(fits), np.ceil(needed)
    finishes = saved >= most
    doubt = _doubt(cycles, whole_s)
    close = (np.abs(fits - np.rint(fits)) < doubt) | (np.abs(needed - np.rint(needed)) < doubt)
    saved = np.minimum(saved, most)
    for row in np.flatnonzero(close):
        start_s, fail_s = cycles.last_start_s[row], cycles.last_fail_s[row]
        saved[row], finishes[row] = _walk(start_s, fail_s, interval_s, save_s, horizon_s)
    return saved, finishes


def _doubt(cycles: Cycles, whole_s: float) -> float:
    """How far the loop's clock may be off a division, in intervals: it rounds at every addition."""
    return min(0.5, 2 * (cycles.longest_s / whole_s + 2) * cycles.rounding_s / whole_s)


def _walk(
    now_s: float, fail_s: float, interval_s: float, save_s: float, horizon_s: float
) -> tuple[int, bool]:
    """What the loop does in one cycle, addition by addition, where a division cannot tell."""
    count = 0
    while now_s < horizon_s:
        saved_s = now_s + interval_s + save_s
        if fail_s < saved_s:
            return count, False
        now_s, count = saved_s, count + 1
    return count, True
