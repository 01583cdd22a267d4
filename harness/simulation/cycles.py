"""The failures of many runs at once: the time from the start, or the end of a restart, to each next one.

They do not depend on the interval between saves, so they are drawn once for all intervals.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.simulation.draws import SEEDS, mulberry32, valid_seed
from harness.simulation.failures import Failures, Renewal
from harness.simulation.laws import Exponential, Law, Weibull

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

_AT_ONCE = 1 << 16
"""Gaps that are worked on together: as many as stay in a core's own cache."""


@dataclass(frozen=True, slots=True)
class Cycles:
    """From the start, or the end of a restart, to the next failure; rows are seeds."""

    starts_s: Floats
    fails_s: Floats
    """When each of them begins and ends, on the loop's clock."""
    gaps_s: Floats
    """Of the cycles that end before the horizon whatever the interval; then less than any interval."""
    whole: Counts
    """How many those are."""
    up_s: Floats
    """Their sum."""
    last_start_s: Floats
    """When the cycle begins in which the horizon lies …"""
    last_fail_s: Floats
    """… when it fails …"""
    last_end_s: Floats
    """… and when the restart after that is over."""
    longest_s: float
    """Of all gaps."""
    rounding_s: float
    """By which an addition to the loop's clock may be off, at most."""
    scratch: tuple[Floats, Floats]
    """Room to divide in, for every interval again: fresh memory would cost more than the division."""


def divided(clocks: Floats, horizon_s: float, filler_s: float) -> Cycles:
    """The cycles of each row; `filler_s` stands for the gaps that a run does not come to."""
    starts, fails = clocks[:, 0::2], clocks[:, 1::2]
    whole = (starts < horizon_s).sum(axis=1) - 1
    rows = np.arange(len(clocks))
    used = int(whole.max())
    within = np.arange(used) < whole[:, None]
    gaps = fails[:, :used] - starts[:, :used]
    up = np.where(within, gaps, 0.0).sum(axis=1)
    gaps[~within] = filler_s
    last_start, last_fail = starts[rows, whole], fails[rows, whole]
    last_end = starts[rows, whole + 1]
    longest_s = float(max(gaps.max(initial=0.0), (last_fail - last_start).max()))
    rounding_s = float(np.spacing(last_end.max()))
    scratch = np.empty_like(gaps), np.empty_like(gaps)
    last = last_start, last_fail, last_end
    return Cycles(starts, fails, gaps, whole, up, *last, longest_s, rounding_s, scratch)


def clocks_s(
    failures: Failures, seeds: Sequence[int], restart_s: float, horizon_s: float, never_s: float
) -> Floats:
    """The start, then each failure and the end of the restart after it, for some of the seeds.

    Added up in the loop's order, until a restart ends beyond the horizon. A failure that is further
    away than `never_s` comes then.
    """
    if not isinstance(failures, Renewal):
        return np.array([list(_told(failures, seeds[0], restart_s, horizon_s, never_s))])
    expected = horizon_s / (failures.gap.mean_s + restart_s)
    draws = int(expected + 4 * expected**0.5) + 16
    seeds = seeds[: max(1, _AT_ONCE // draws)]
    while True:
        steps = np.empty((len(seeds), 2 * draws + 1))
        steps[:, 0], steps[:, 2::2] = 0, restart_s
        steps[:, 1::2] = np.minimum(quantiles_s(failures.gap, uniforms(seeds, draws)), never_s)
        clocks: Floats = np.cumsum(steps, axis=1)
        if clocks[:, -1].min() >= horizon_s:
            return clocks
        draws *= 2


def _told(
    failures: Failures, seed: int, restart_s: float, horizon_s: float, never_s: float
) -> Iterator[float]:
    """The same of one seed, for failures that have to be asked for one by one."""
    following, now_s = failures.begin(mulberry32(seed)), 0.0
    yield now_s
    while now_s < horizon_s:
        fail_s = min(following(now_s).at_s, now_s + never_s)
        now_s = fail_s + restart_s
        yield from (fail_s, now_s)


def uniforms(seeds: Sequence[int], count: int) -> Floats:
    """The first `count` numbers of mulberry32 for each seed: its state is the seed plus a multiple."""
    start = np.array([valid_seed(seed) for seed in seeds], np.uint32)[:, None]
    t = start + np.arange(1, count + 1, dtype=np.uint32) * np.uint32(0x6D2B79F5)
    t = (t ^ (t >> np.uint32(15))) * (t | np.uint32(1))
    t ^= t + (t ^ (t >> np.uint32(7))) * (t | np.uint32(61))
    numbers: Floats = np.divide(t ^ (t >> np.uint32(14)), SEEDS)
    return numbers


def quantiles_s(law: Law, u: Floats) -> Floats:
    """`law.quantile_s` of every number."""
    match law:
        case Exponential():
            return -np.log(1 - u) * law.mean_s
        case Weibull():
            return law.scale_s * (-np.log(1 - u)) ** (1 / law.shape)
        case _:
            slowly: Floats = np.vectorize(law.quantile_s, otypes=[float])(u)
            return slowly
