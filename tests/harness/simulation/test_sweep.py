"""The sweep against the loop that it does not walk."""

import math
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.simulation.cycles import quantiles_s, uniforms
from harness.simulation.draws import mulberry32
from harness.simulation.failures import Failures, Instants, Lemons, Racks, Renewal
from harness.simulation.laws import Constant, Exponential, LogNormal, Observed, Weibull
from harness.simulation.loop import Costs, Kind, walk
from harness.simulation.sweep import sweep
from harness.simulation.vectors import read
from harness.theory import goodput

VECTORS = Path(__file__).with_name("vectors.json")


def assert_as_the_loop(failures: Failures, costs: Costs, seed: int) -> None:
    """Counts are equal; times to 1e-9 of the whole."""
    following = failures.begin(mulberry32(seed))
    walked = walk(costs, lambda now_s: following(now_s).at_s)
    told = sweep(
        failures,
        [costs.interval_s],
        save_s=costs.save_s,
        restart_s=costs.restart_s,
        horizon_s=costs.horizon_s,
        seeds=[seed],
    )
    counts = walked.counts()
    assert told.committed[0, 0] == counts[Kind.WORK] == counts[Kind.CHECKPOINT]
    assert told.failures[0, 0] == counts[Kind.LOST] == counts[Kind.RESTART]
    assert told.end_s[0, 0] == pytest.approx(walked.end_s, rel=1e-9)
    totals = {kind.value: total for kind, total in walked.totals_s().items()}
    assert told.totals_s(0, 0) == pytest.approx(totals, rel=1e-9, abs=1e-9 * walked.end_s)


def test_one_sweep_gives_all_vectors():
    rows = {(row.costs.interval_s, row.seed): row for row in read(VECTORS).rows}
    intervals, seeds = sorted({key[0] for key in rows}), sorted({key[1] for key in rows})
    costs = next(iter(rows.values())).costs
    told = sweep(
        Renewal(Exponential(11_160)),
        intervals,
        save_s=costs.save_s,
        restart_s=costs.restart_s,
        horizon_s=costs.horizon_s,
        seeds=seeds,
    )
    for place, interval in enumerate(intervals):
        for column, seed in enumerate(seeds):
            row = rows[interval, seed].told
            assert told.committed[place, column] == row["count"]["work"]
            assert told.failures[place, column] == row["failures"]
            assert told.end_s[place, column] == pytest.approx(row["end_s"], rel=1e-9)
            assert told.totals_s(place, column) == pytest.approx(row["total_s"], rel=1e-9)
            assert told.goodput[place, column] == pytest.approx(row["goodput"], rel=1e-9)


def test_the_mean_of_twenty_seeds_is_the_published_one():
    minutes = (2, 4, 8, 14, 16, 20, 32, 64, 128)
    told = sweep(
        Renewal(Exponential(11_160)),
        [60 * m for m in minutes],
        save_s=33,
        restart_s=600,
        horizon_s=54 * 86_400,
        seeds=range(1, 21),
    )
    published = [0.73914, 0.82417, 0.86745, 0.87751, 0.87738, 0.87376, 0.85334, 0.78792, 0.65800]
    assert [round(float(g), 5) for g in told.goodput.mean(axis=1)] == published


def test_many_seeds_reach_the_exact_form():
    told = sweep(
        Renewal(Exponential(11_160)),
        [840],
        save_s=33,
        restart_s=600,
        horizon_s=54 * 86_400,
        seeds=range(4000),
    )
    # 4 standard errors of 0.41 points, and what a run's end adds: below 1e-4
    error = 0.0041 / math.sqrt(4000)
    assert abs(float(told.goodput.mean()) - goodput(840, 33, 600, 11_160)) < 4 * error + 1e-4
    assert float(told.goodput.std()) == pytest.approx(0.0041, rel=0.05)


EXAMPLES = 400

whole_or_not = st.one_of(st.integers(1, 40), st.floats(0.5, 40))
"""Whole numbers meet whole numbers: failures at the very end of a save, horizons at the end of one."""


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    interval=whole_or_not,
    save=st.one_of(st.integers(0, 10), st.floats(0, 10)),
    restart=st.one_of(st.integers(0, 50), st.floats(0, 50)),
    horizon=st.one_of(st.integers(1, 3000), st.floats(1, 3000)),
    gap=st.one_of(st.integers(1, 500), st.floats(1, 500)),
    seed=st.integers(0, 2**32 - 1),
)
@example(interval=0.1, save=0.2, restart=0, horizon=3000, gap=0.3 * 7, seed=0)
@example(interval=1, save=5.614268279191512, restart=0, horizon=40, gap=6.614268279191512, seed=0)
@example(interval=10, save=0, restart=0, horizon=1000, gap=100, seed=0)
def test_it_counts_as_the_loop_does(interval, save, restart, horizon, gap, seed):
    costs = Costs(interval, save, restart, horizon)
    for failures in (
        Renewal(Constant(gap)),
        Renewal(Exponential(gap)),
        Instants([gap, 2 * gap, 7 * gap]),
    ):
        assert_as_the_loop(failures, costs, seed)


@pytest.mark.parametrize(
    "failures",
    [
        Renewal(Weibull(11_160, 0.62)),
        Renewal(LogNormal(11_160, 1.76)),
        Renewal(Observed([500.0, 7000.0, 90_000.0])),
        Lemons(2048, 11_160, 0.1, 6, replaced_after=2),
        Racks(2048, 8, 3e7, 2e8),
    ],
)
def test_every_way_to_fail_counts_as_in_the_loop(failures):
    for seed in (1, 2):
        assert_as_the_loop(failures, Costs(960, 33, 600, 2e6), seed)


@pytest.mark.parametrize(
    "law", [Exponential(9), Weibull(9, 0.62), LogNormal(9, 1.5), Constant(9), Observed([1, 2])]
)
def test_quantiles_of_many_are_those_of_each(law):
    numbers = uniforms([5], 200)
    one_by_one = [law.quantile_s(float(u)) for u in numbers[0]]
    assert quantiles_s(law, numbers)[0].tolist() == pytest.approx(one_by_one, rel=1e-12)


def test_the_numbers_are_those_of_the_generator():
    for seed in (0, 1, 4_294_967_295):
        draw = mulberry32(seed)
        assert uniforms([7, seed], 50)[1].tolist() == [draw() for _ in range(50)]


def test_a_run_without_a_failure_ends_after_its_saves():
    told = sweep(Instants([1e9]), [10, 50], save_s=1, restart_s=5, horizon_s=100, seeds=[1])
    assert told.committed[:, 0].tolist() == [10, 2]
    assert told.end_s[:, 0].tolist() == [110, 102]
    assert told.failures.sum() == 0


@pytest.mark.parametrize(
    ("intervals", "message"), [([0], "interval_s = 0 is not above 0"), ([], "no interval")]
)
def test_intervals_that_cannot_be_are_refused(intervals, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        sweep(Renewal(Exponential(1)), intervals, save_s=1, restart_s=1, horizon_s=1, seeds=[1])
