"""What a job that saves and fails can reach, in closed form. Pure: equations, their sources, no clock.

M is the mean time between failures of the *job* (mean up time), δ the time that a save blocks
training, τ the work between two saves, R a restart; all of them in seconds. Every function raises
`ValueError` for a value that cannot be one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from harness.fleet import (
    FailureRate,
    Level,
    expected_slowest,
    expected_step,
    failure_rate,
    job_mtbf_s,
    persistent_slowdown,
)
from harness.quantities import checked
from harness.tiers import Tier, TwoTiers, two_tiers

__all__ = [
    "FailureRate",
    "Level",
    "Shares",
    "Tier",
    "TwoTiers",
    "best_goodput",
    "best_interval_s",
    "daly_goodput",
    "daly_higher_s",
    "daly_lower_s",
    "daly_wall_s",
    "ettr",
    "expected_slowest",
    "expected_step",
    "failure_rate",
    "first_order_overhead",
    "goodput",
    "goodput_sd",
    "intervals_within_s",
    "job_mtbf_s",
    "persistent_slowdown",
    "restart_for_goodput_s",
    "shares",
    "two_tiers",
    "young_s",
]

FLAT_POINTS = 0.002
"""Intervals that cost less than this much goodput, in the exact form, are called as good as the best."""


# ── intervals ───────────────────────────────────────────────────────────────────────────────────


def young_s(save_s: float, mtbf_s: float) -> float:
    """Young's interval of work, τ = √(2δM): the minimum of `first_order_overhead`.

    J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974.
    """
    return math.sqrt(2 * _save(save_s) * _mtbf(mtbf_s))


def daly_lower_s(save_s: float, mtbf_s: float, restart_s: float) -> float:
    """Daly's lower order interval, τ = √(2δ(M + R)) - δ; 0 where that is negative.

    J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps,
    Future Generation Computer Systems 22, 2006, eq. 13.
    """
    mean_s = _mtbf(mtbf_s) + _restart(restart_s)
    return max(0.0, math.sqrt(2 * _save(save_s) * mean_s) - save_s)


def daly_higher_s(save_s: float, mtbf_s: float) -> float:
    """Daly's higher order interval, √(2δM)·[1 + ⅓√(δ/2M) + ⅑(δ/2M)] - δ for δ < 2M, else M.

    Daly 2006, eq. 37. It does not depend on R.
    """
    _save(save_s), _mtbf(mtbf_s)
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    x = save_s / (2 * mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s) * (1 + math.sqrt(x) / 3 + x / 9) - save_s


def best_interval_s(save_s: float, mtbf_s: float) -> float:
    """The interval at which `goodput` and `daly_goodput` peak: τ* = M(1 + W₀(-e^(-1 - δ/M))).

    From dG/dτ = 0. It does not depend on R, and tends to √(2δM) for δ → 0 and to M for δ ≫ M.
    """
    return _mtbf(mtbf_s) * one_plus_lambert(_save(save_s) / mtbf_s)


def one_plus_lambert(x: float) -> float:
    """1 + W₀(-e^(-1-x)) for x ≥ 0, by Newton's method.

    With u = 1 + W the definition W e^W = -e^(-1-x) becomes u + ln(1 - u) + x = 0, whose left side
    falls and is concave on [0, 1): started on the right of the root, Newton comes down to it.
    """
    if x == 0:
        return 0.0
    if x > 36:
        return 1.0  # to the last digit
    u = min(math.sqrt(2 * x), -math.expm1(-1 - x))
    for _ in range(60):
        step = (_log_rest(u) + x) * (1 - u) / u
        u += step
        if abs(step) <= 1e-16 * u:
            break
    return u


def _log_rest(u: float) -> float:
    """Gives u + ln(1 - u), where u is small by its series, for the two cancel to their last digits."""
    if u > 0.05:
        return u + math.log1p(-u)
    return -sum(u**power / power for power in range(2, 14))


def intervals_within_s(
    save_s: float, restart_s: float, mtbf_s: float, points: float
) -> tuple[float, float]:
    """The shortest and longest interval whose `goodput` is within `points` of the best.

    By bisection on either side of τ*: the curve has one peak. 0.002 are 0.2 percentage points.
    """
    best_s = best_interval_s(save_s, mtbf_s)
    best = best_goodput(save_s, restart_s, mtbf_s)
    least = best - checked("points", points, above=0, at_most=best * 0.999)

    def good(interval_s: float) -> bool:
        return goodput(interval_s, save_s, restart_s, mtbf_s) >= least

    beyond_s = best_s + mtbf_s
    while good(beyond_s):
        beyond_s *= 2
    return _edge(best_s, 0.0, good), _edge(best_s, beyond_s, good)


def _edge(inside: float, outside: float, good: Callable[[float], bool]) -> float:
    """Where `good` ends between a point inside and one outside."""
    for _ in range(80):
        middle = (inside + outside) / 2
        if middle > 0 and good(middle):
            inside = middle
        else:
            outside = middle
    return inside


# ── goodput of one tier ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Shares:
    """Where the time goes in the long run; the four sum to 1."""

    work: float
    checkpoint: float
    lost: float
    restart: float


def goodput(interval_s: float, save_s: float, restart_s: float, mtbf_s: float) -> float:
    """Share of the time that is kept work, G(τ) = τ / ((M + R)(e^((τ+δ)/M) - 1)).

    Exact for exponential failures that never hit a restart, where one that comes before the save
    has ended loses the whole interval: renewal theory, from failure to failure.
    """
    return shares(interval_s, save_s, restart_s, mtbf_s).work


def shares(interval_s: float, save_s: float, restart_s: float, mtbf_s: float) -> Shares:
    """The exact time by kind: τK, δK, M - (τ+δ)K and R over M + R, with K = 1/(e^((τ+δ)/M) - 1).

    K is the mean number of intervals that are committed between two failures.
    """
    _interval(interval_s), _save(save_s), _restart(restart_s), _mtbf(mtbf_s)
    whole_s = interval_s + save_s
    committed = _committed(whole_s / mtbf_s)
    cycle_s = mtbf_s + restart_s
    return Shares(
        work=interval_s * committed / cycle_s,
        checkpoint=save_s * committed / cycle_s,
        lost=(mtbf_s - whole_s * committed) / cycle_s,
        restart=restart_s / cycle_s,
    )


def _committed(x: float) -> float:
    """Gives 1/(e^x - 1); 0 where e^x is beyond all numbers."""
    return 1 / math.expm1(x) if x < 700 else 0.0


def best_goodput(save_s: float, restart_s: float, mtbf_s: float) -> float:
    """The goodput at `best_interval_s`, G* = (M - τ*) / (M + R)."""
    return (mtbf_s - best_interval_s(save_s, mtbf_s)) / (mtbf_s + _restart(restart_s))


def restart_for_goodput_s(target: float, save_s: float, mtbf_s: float) -> float | None:
    """The longest restart with which `target` can be had: R = (M - τ*)/G - M; None if with none."""
    checked("target", target, above=0, at_most=1)
    restart_s = (mtbf_s - best_interval_s(save_s, mtbf_s)) / target - mtbf_s
    return restart_s if restart_s >= 0 else None


def goodput_sd(
    interval_s: float, save_s: float, restart_s: float, mtbf_s: float, horizon_s: float
) -> float:
    """Standard deviation of the goodput of ONE run of `horizon_s`: √(V / ((M + R)·H)).

    V = (τ - G a)²·p/(1-p)² + G²·(M² - a²·p/(1-p)²), with a = τ + δ and p = e^(-a/M): the variance
    of kept work - G·time over one cycle (central limit theorem for renewal rewards). Good for
    horizons of many failures.
    """
    share = goodput(interval_s, save_s, restart_s, mtbf_s)
    whole_s = interval_s + save_s
    p = math.exp(-whole_s / mtbf_s)
    spread = p / math.expm1(-whole_s / mtbf_s) ** 2
    variance = (interval_s - share * whole_s) ** 2 * spread
    variance += share**2 * (mtbf_s**2 - whole_s**2 * spread)
    return math.sqrt(variance / ((mtbf_s + restart_s) * checked("horizon_s", horizon_s, above=0)))


def daly_wall_s(
    work_s: float, interval_s: float, save_s: float, restart_s: float, mtbf_s: float
) -> float:
    """Wall time of `work_s` of work by Daly's complete model: M e^(R/M) (e^((τ+δ)/M) - 1)·work/τ.

    Daly 2006, eq. 20: failures may hit the restart as well. Infinite where it is beyond all numbers.
    """
    share = daly_goodput(interval_s, save_s, restart_s, mtbf_s)
    return checked("work_s", work_s, at_least=0) / share if share else math.inf


def daly_goodput(interval_s: float, save_s: float, restart_s: float, mtbf_s: float) -> float:
    """`goodput` where failures may hit the restart as well: M e^(R/M) in place of M + R."""
    share = goodput(interval_s, save_s, restart_s, mtbf_s)
    if restart_s / mtbf_s > 700:
        return 0.0
    return share * (mtbf_s + restart_s) / (mtbf_s * math.exp(restart_s / mtbf_s))


def first_order_overhead(
    interval_s: float, save_s: float, restart_s: float, mtbf_s: float
) -> float:
    """Time lost per unit of work to first order, δ/τ + (τ/2 + R)/M (the textbook form).

    At Llama 3's numbers 1/(1 + overhead) is 0.7 points above the exact goodput and 1 - overhead 0.9
    below: whoever draws it says which.
    """
    _interval(interval_s), _save(save_s), _restart(restart_s), _mtbf(mtbf_s)
    return save_s / interval_s + (interval_s / 2 + restart_s) / mtbf_s


def ettr(
    nodes: int,
    failures_per_node_day: float,
    interval_s: float,
    save_s: float,
    restart_s: float,
) -> float:
    """Meta's effective training time ratio, (1 - N r_f (u₀ + Δt/2)) / (1 + w/Δt); at least 0.

    A. Kokolis et al., Revisiting reliability in large-scale machine learning research clusters,
    arXiv 2410.21680, §4: N nodes, r_f failures per node-day, u₀ restart, Δt interval, w save.
    """
    _interval(interval_s), _save(save_s), _restart(restart_s)
    checked("nodes", nodes, at_least=1)
    per_s = nodes * checked("failures_per_node_day", failures_per_node_day, at_least=0) / 86_400
    return max(0.0, 1 - per_s * (restart_s + interval_s / 2)) / (1 + save_s / interval_s)


# ── what can be one ─────────────────────────────────────────────────────────────────────────────


def _mtbf(mtbf_s: float) -> float:
    return checked("mtbf_s", mtbf_s, above=0)


def _interval(interval_s: float) -> float:
    return checked("interval_s", interval_s, above=0)


def _save(save_s: float) -> float:
    return checked("save_s", save_s, at_least=0)


def _restart(restart_s: float) -> float:
    return checked("restart_s", restart_s, at_least=0)
