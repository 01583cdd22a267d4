"""The pure core of a plan, against published figures, by hand, and by its laws."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import theory
from harness.planner import FastTier, Job, Needs, expected, goodput, goodput_sd, needs
from harness.planning.levers import Means, Memory, Stragglers, best, levers

H = 3600.0
LLAMA_3 = Job(3.1 * H, 33, 600)
MEANS = Means(16_384, Memory(), True, True, None, None)

durations_s = st.floats(0.01, 1e4)
jobs = st.builds(
    Job,
    mtbf_s=st.floats(100, 1e7),
    save_s=st.floats(0.01, 50),
    restart_s=st.floats(0, 1e4),
    commit_s=st.floats(0, 50),
    fast=st.none()
    | st.builds(
        FastTier, save_s=st.floats(0.01, 10), restart_s=st.floats(0, 1e3), share=st.floats(0, 1)
    ),
    slowdown=st.floats(1, 3),
)


@pytest.mark.parametrize(
    ("gpus", "minutes", "reached"),
    [
        (1_024, 56.9, (0.9776, 0.9802, 0.9922)),
        (16_384, 13.9, (0.8779, 0.9152, 0.9652)),
        (32_768, 9.75, (0.8082, 0.8763, 0.9481)),
        (100_000, 5.4, (0.6188, 0.7712, 0.8984)),
    ],
)
def test_more_gpus_at_the_same_rate_each(gpus, minutes, reached):
    mtbf_s = 3.1 * H * 16_384 / gpus
    assert expected(Job(mtbf_s, 33, 600)).interval_s / 60 == pytest.approx(minutes, abs=0.06)
    costs = [(33, 600), (33, 120), (5, 60)]
    told = [goodput(Job(mtbf_s, save_s, restart_s)) for save_s, restart_s in costs]
    assert told == pytest.approx(reached, abs=5e-5)


@pytest.mark.parametrize(("share", "simulated"), [(0.8, 0.928), (0.45, 0.899), (0.23, 0.887)])
def test_two_tiers_are_as_good_as_simulated(share, simulated):
    """Published Monte Carlo figures are met to a third of a point, and never exceeded by more than a tenth."""
    told = goodput(replace(LLAMA_3, fast=FastTier(3, 120, share)))
    assert simulated - 0.0033 < told < simulated + 0.001


def test_a_tier_that_serves_all_or_nothing_is_a_job_of_one_tier():
    nothing = replace(LLAMA_3, fast=FastTier(3, 120, 0))
    assert goodput(nothing) == goodput(LLAMA_3)
    everything = replace(LLAMA_3, fast=FastTier(3, 120, 1))
    assert goodput(everything) == pytest.approx(goodput(Job(3.1 * H, 3, 120)), abs=1e-5)


def test_a_run_of_54_days_is_known_to_four_tenths_of_a_point():
    assert goodput_sd(LLAMA_3, 54 * 86_400) == pytest.approx(0.0041, abs=5e-5)


def test_what_two_tiers_add_to_the_spread_is_independent():
    two = replace(LLAMA_3, fast=FastTier(3, 120, 0.5))
    fast, durable = Job(6.2 * H, 3, 120), Job(6.2 * H, 33, 600)
    relative = [goodput_sd(one, 1e6) / goodput(one) for one in (fast, durable)]
    assert goodput_sd(two, 1e6) == pytest.approx(goodput(two) * math.hypot(*relative))


def test_ninety_per_cent_need_a_restart_of_311_seconds():
    assert needs(LLAMA_3, 0.9).restart_s == pytest.approx(310.7, abs=0.1)


def test_some_targets_cannot_be_had_and_one_never():
    some = needs(LLAMA_3, 0.95)
    assert (some.restart_s, some.save_s) == (None, None)
    assert some.mtbf_s is not None
    assert goodput(replace(LLAMA_3, mtbf_s=some.mtbf_s)) == pytest.approx(0.95)
    assert needs(LLAMA_3, 1.0) == Needs(None, None, None)


def test_a_save_that_is_durable_later_loses_that_much_more():
    late = expected(replace(LLAMA_3, commit_s=60))
    assert late.shares.lost > expected(LLAMA_3).shares.lost
    assert late.shares.restart == pytest.approx(600 / (3.1 * H + 660))
    assert expected(replace(LLAMA_3, commit_s=3600)).interval_s == 3600


def test_a_commit_that_a_failure_loses_spreads_goodput_as_a_longer_restart_does():
    late, told = replace(LLAMA_3, commit_s=300), expected(replace(LLAMA_3, commit_s=300))
    at = told.interval_s, 33, 900, 3.1 * H
    assert goodput_sd(late, 1e6) == pytest.approx(theory.goodput_sd(*at, 1e6))
    low_s, high_s = theory.intervals_within_s(33, 900, 3.1 * H, theory.FLAT_POINTS)
    assert told.alike_s == pytest.approx((low_s, high_s))


def test_the_lever_that_pays_most_is_named():
    told = levers(LLAMA_3, MEANS)
    assert {lever.name: None if lever.gain is None else round(lever.gain, 4) for lever in told} == {
        "halve the restart": 0.023,
        "halve the save": 0.0204,
        "memory tier on the node": 0.0069,
        "memory tier on a peer": 0.0502,
        "double the storage": 0.0204,
        "remove the slowest 0.1%": None,
    }
    first = best(told)
    assert first is not None
    assert first.name == "memory tier on a peer"


def test_removing_slow_devices_pays_where_there_are_some():
    slow = Stragglers(0.0, 0.0001, 1.5)
    job = replace(LLAMA_3, slowdown=slow.factor(16_384))
    assert job.slowdown == pytest.approx(1 + 0.5 * (1 - 0.9999**16_384))
    told = {one.name: one.gain for one in levers(job, replace(MEANS, stragglers=slow))}
    assert expected(job).effective == pytest.approx(goodput(job) / job.slowdown)
    waiting = expected(job).waiting
    assert told["remove the slowest 0.1%"] == pytest.approx(waiting)


def test_faster_storage_shortens_what_depends_on_it():
    late = replace(LLAMA_3, save_s=1.0, commit_s=600.0)
    means = replace(MEANS, writes_block=False, burst_ratio=3.0)
    told = {one.name: one.gain for one in levers(late, means)}
    now = goodput(late)
    assert told["double the storage"] == pytest.approx(goodput(replace(late, commit_s=300)) - now)
    burst = goodput(replace(late, commit_s=200)) - now
    assert told["write at the burst rate"] == pytest.approx(burst)


def test_a_tier_that_is_there_is_no_lever_and_none_is_slower_than_the_job():
    on_peer = replace(LLAMA_3, fast=FastTier(3, 120, 0.8))
    assert not [one for one in levers(on_peer, MEANS) if "memory" in one.name]
    on_node = replace(LLAMA_3, fast=FastTier(3, 120, 0.23))
    names = [one.name for one in levers(on_node, MEANS) if "memory" in one.name]
    assert names == ["memory tier on a peer"]
    quick = Job(3.1 * H, 1.0, 10.0)
    told = {one.name: one.gain for one in levers(quick, MEANS)}
    same = replace(quick, fast=FastTier(1.0, 10.0, 0.8))
    assert told["memory tier on a peer"] == pytest.approx(goodput(same) - goodput(quick))


def test_nothing_pays_where_nothing_fails():
    assert best([one for one in levers(Job(1e15, 1e-6, 0), MEANS) if one.gain == 0]) is None


@given(jobs, st.floats(0, 1))
def test_a_shorter_restart_never_lowers_goodput(job, part):
    assert goodput(replace(job, restart_s=part * job.restart_s)) >= goodput(job)


@given(jobs, st.floats(1e-3, 1))
def test_a_shorter_save_never_lowers_goodput(job, part):
    assert goodput(replace(job, save_s=part * job.save_s)) >= goodput(job) * (1 - 1e-9)


@given(jobs, st.floats(1, 100))
def test_fewer_failures_never_lower_goodput_of_a_job_of_one_tier(job, times):
    job = replace(job, fast=None)
    assert goodput(replace(job, mtbf_s=times * job.mtbf_s)) >= goodput(job) * (1 - 1e-9)


@given(jobs)
def test_all_of_the_time_is_somewhere(job):
    told = expected(job)
    shares = told.shares
    parts = (shares.work, shares.checkpoint, shares.lost, shares.restart)
    assert sum(parts) == pytest.approx(1)
    assert all(part >= -1e-9 for part in parts)
    assert told.goodput == pytest.approx(goodput(job))
    assert 0 <= told.effective <= told.goodput


@given(jobs, st.floats(0.05, 0.99))
def test_what_is_needed_is_enough_and_no_more(job, target):
    job = replace(job, fast=None, commit_s=0.0)
    told = needs(job, target)
    for name in ("restart_s", "save_s"):
        most = getattr(told, name)
        if most is not None:
            assert goodput(replace(job, **{name: max(most, 1e-12)})) >= target - 1e-6
            assert goodput(replace(job, **{name: most * 1.01 + 1e-3})) < target
    if told.mtbf_s is not None:
        assert goodput(replace(job, mtbf_s=told.mtbf_s)) >= target - 1e-6
        assert goodput(replace(job, mtbf_s=told.mtbf_s * 0.99)) < target


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"mtbf_s": -1.0}, "mtbf_s = -1.0 is not above 0"),
        ({"save_s": 0.0}, "save_s = 0.0 is not above 0"),
        ({"restart_s": -1.0}, "restart_s = -1.0 is below 0"),
        ({"slowdown": 0.5}, "slowdown = 0.5 is below 1"),
        ({"mtbf_s": math.nan}, "mtbf_s = nan is not finite"),
    ],
)
def test_a_job_that_cannot_be_is_refused(change, line):
    with pytest.raises(ValueError, match=line):
        replace(LLAMA_3, **change)
