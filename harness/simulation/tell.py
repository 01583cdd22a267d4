"""What `harness simulate` prints: a table of intervals, what they say, and what theory says beside it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from harness import theory
from harness.fleet import persistent_slowdown
from harness.report.spread import counted, duration
from harness.simulation.asked import Asked
from harness.simulation.options import Stragglers
from harness.simulation.study import Point, Study

SCHEMA = 1


def told(asked: Asked, of: Study) -> str:
    """The study for people."""
    return "\n".join([*_head(asked), "", *_table(asked, of), "", *_verdict(asked, of)]) + "\n"


def to_json(asked: Asked, of: Study) -> dict[str, Any]:
    """The study for programs, in seconds."""
    return {
        "schema": SCHEMA,
        "mtbf_s": asked.mtbf_s,
        "save_s": asked.save_s,
        "restart_s": asked.restart_s,
        "horizon_s": asked.horizon_s,
        "seeds": list(asked.seeds),
        "points": [
            {
                "interval_s": point.interval_s,
                "goodput": point.mean,
                "goodput_low": point.low,
                "goodput_high": point.high,
                "standard_error": point.error,
                "exact": exact(asked, point.interval_s),
                "cannot_be_told_from_best": point.in_set,
            }
            for point in of.points
        ],
        "best_interval_s": of.best.interval_s,
        "best_goodput": of.best.mean,
        "theory": None if asked.mtbf_s is None else _theory(asked, asked.mtbf_s),
    }


def _theory(asked: Asked, mtbf_s: float) -> dict[str, float]:
    return {
        "young_s": theory.young_s(asked.save_s, mtbf_s),
        "daly_s": theory.daly_higher_s(asked.save_s, mtbf_s),
        "exact_optimum_s": theory.best_interval_s(asked.save_s, mtbf_s),
        "exact_goodput": theory.best_goodput(asked.save_s, asked.restart_s, mtbf_s),
    }


def exact(asked: Asked, interval_s: float) -> float | None:
    """The goodput by the exact form of the textbook job; None where failures have no mean."""
    if asked.mtbf_s is None:
        return None
    return theory.goodput(interval_s, asked.save_s, asked.restart_s, asked.mtbf_s)


def first_order(asked: Asked, interval_s: float) -> float | None:
    """The same by the first-order overhead, as 1/(1 + overhead)."""
    if asked.mtbf_s is None:
        return None
    costs = (interval_s, asked.save_s, asked.restart_s, asked.mtbf_s)
    return 1 / (1 + theory.first_order_overhead(*costs))


# ── for people ──────────────────────────────────────────────────────────────────────────────────


def _head(asked: Asked) -> Iterator[str]:
    fails = "failures as in the trace" if asked.mtbf_s is None else f"MTBF {_time(asked.mtbf_s)}"
    yield (
        f"{counted(len(asked.seeds), 'run')} of {asked.horizon_s / 86_400:g} days at each interval:"
        f" {fails} (of the job), save {_time(asked.save_s)}, restart {_time(asked.restart_s)}"
    )
    yield "the same failures for every interval"


def _table(asked: Asked, of: Study) -> Iterator[str]:
    kind = "exact" if asked.is_textbook else "textbook"
    yield f"{'interval':>10}  goodput  9 in 10 runs   {kind:>8}  1st order"
    for point in of.points:
        yield _row(asked, point, of)
    yield "* cannot be told from the best by these runs" + (
        "" if asked.is_textbook else "; textbook: exponential failures, no option"
    )


def _row(asked: Asked, point: Point, of: Study) -> str:
    forms = (exact(asked, point.interval_s), first_order(asked, point.interval_s))
    figures = ["–" if one is None else f"{one:.2%}" for one in forms]
    mark = "best" if point is of.best else "*" if point.in_set else ""
    return (
        f"{_minutes(point.interval_s):>10}  {point.mean:7.2%}  {point.low:.1%}–{point.high:.1%}"
        f"   {figures[0]:>8}  {figures[1]:>9}  {mark}"
    ).rstrip()


def _verdict(asked: Asked, of: Study) -> Iterator[str]:
    alike = [_minutes(point.interval_s) for point in of.alike]
    best = f"simulated best {_minutes(of.best.interval_s)}, goodput {of.best.mean:.1%}"
    if len(asked.seeds) == 1:
        yield f"{best}; one run tells no two intervals apart: give more --seeds"
    else:
        yield f"{best}; the set that cannot be told apart: {', '.join(alike)}"
    if asked.options.stragglers is not None:
        yield from _straggling(asked.options.stragglers)
    if asked.mtbf_s is None:
        return
    costs = (asked.save_s, asked.restart_s, asked.mtbf_s)
    best_s = theory.best_interval_s(asked.save_s, asked.mtbf_s)
    young_s = theory.young_s(asked.save_s, asked.mtbf_s)
    yield (
        f"exact optimum of the textbook job {_minutes(best_s)}, goodput"
        f" {theory.best_goodput(*costs):.2%}; Young {_minutes(young_s)};"
        f" Daly {_minutes(theory.daly_higher_s(asked.save_s, asked.mtbf_s))}"
    )
    if asked.is_textbook and best_s > 0:
        yield from _precision(asked, costs, best_s)


def _straggling(slow: Stragglers) -> Iterator[str]:
    """What waiting for the slowest costs, and how that grows with the number of devices."""
    counts = sorted({1, *(slow.devices // 16**power or 1 for power in range(4))})
    steps = [f"{count:,}: {replace(slow, devices=count).factor(0):.3f}" for count in counts]
    yield f"a step by number of devices, for noise alone: {', '.join(steps)} × a device's own mean"
    if slow.slow_share:
        some = persistent_slowdown(slow.devices, slow.slow_share, 2.0) - 1
        yield (
            f"{some:.1%} of the attempts have a slow device in them; with one, a step takes"
            f" {slow.factor(1):.3f} ×"
        )


def _precision(asked: Asked, costs: tuple[float, float, float], best_s: float) -> Iterator[str]:
    """What cannot matter, and what a single run cannot show."""
    if theory.best_goodput(*costs) > 2 * theory.FLAT_POINTS:
        low_s, high_s = theory.intervals_within_s(*costs, theory.FLAT_POINTS)
        yield (
            f"the curve is flat: {_minutes(low_s)} to {_minutes(high_s)} cost less than"
            f" {100 * theory.FLAT_POINTS:g} points"
        )
    sd = theory.goodput_sd(best_s, *costs, asked.horizon_s)
    yield f"one run of this length is known to ±{100 * sd:.2f} points (standard deviation)"


def _minutes(interval_s: float) -> str:
    return f"{interval_s / 60:.3g} min" if interval_s >= 60 else f"{interval_s:.3g} s"


def _time(duration_s: float) -> str:
    return f"{duration_s / 3600:.3g} h" if duration_s >= 3600 else duration(round(duration_s * 1e9))
