"""A run in which undisturbed rounds are skipped goes as one that is walked through."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.simulation.failures import Renewal
from harness.simulation.job import SimulatedJob
from harness.simulation.laws import Constant, Exponential
from harness.simulation.loop import Costs
from harness.simulation.options import (
    Corruption,
    Exposure,
    FastTier,
    Maintenance,
    Options,
    Spares,
    Stragglers,
)
from harness.simulation.rounds import Round, round_of


def test_a_round_counts_the_copies_of_the_fast_tier_in_it():
    # 4+1, 4+1, 2+3
    costs, fast = Costs(10, 3, 5, 100), FastTier(4, 1, 1, 1.0)
    assert round_of(costs, Options(fast=fast, commit_s=7)) == Round(10, 15, 3, 7)
    assert round_of(costs, Options()) == Round(10, 13, 1, 0)
    assert round_of(costs, Options(fast=FastTier(5, 1, 1, 1.0))) == Round(10, 14, 2, 0)


def test_the_last_two_rounds_before_anything_happens_are_walked():
    plain = Round(work_s=10, lasts_s=13, saves=1, commit_s=5)
    assert plain.undisturbed(now_s=100, durable_s=105, until_s=100 + 13 * 7) == 5
    assert plain.undisturbed(now_s=100, durable_s=105, until_s=100 + 13 * 7 - 1) == 4
    assert plain.undisturbed(now_s=100, durable_s=105, until_s=110) == 0
    assert plain.undisturbed(now_s=100, durable_s=106, until_s=1000) == 0
    assert Round(10, 13, 1, commit_s=14).undisturbed(100, 0, 1000) == 0


ways = st.builds(
    Options,
    exposure=st.sampled_from(Exposure),
    detection=st.sampled_from([Constant(0.0), Exponential(60)]),
    commit_s=st.sampled_from([0.0, 20.0, 150.0, 700.0]),
    fast=st.sampled_from([None, FastTier(70, 2, 60, 0.5), FastTier(100, 3, 60, 0.9)]),
    maintenance=st.sampled_from([None, Maintenance(20_000, 3000)]),
    stragglers=st.sampled_from([None, Stragglers(64, 0.05, 0.01, 1.3)]),
    corruption=st.sampled_from([None, Corruption(Exponential(9_000), Exponential(4000))]),
    spares=st.sampled_from([None, Spares(1, Exponential(9000))]),
)


@settings(max_examples=60, deadline=None)
@given(ways, st.sampled_from([100.0, 300.0, 313.7]), st.sampled_from([2500.0, 9000.0]), st.data())
def test_skipping_changes_nothing(options, interval_s, mtbf_s, data):
    seed = data.draw(st.integers(0, 1000))
    costs = Costs(interval_s, 33, 600, 1e5)
    walked = SimulatedJob(costs, Renewal(Exponential(mtbf_s)), options, seed)
    for _ in walked.entries():
        pass
    skipping = SimulatedJob(costs, Renewal(Exponential(mtbf_s)), options, seed)
    assert skipping.goodput() == pytest.approx(walked.useful_s / walked.now_s, rel=1e-11)
    assert skipping.now_s == pytest.approx(walked.now_s, rel=1e-11)
