import math
import random
import re
import statistics
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import fleet, theory
from harness.fleet import Level, expected_slowest, failure_rate, job_mtbf_s, persistent_slowdown
from harness.theory import (
    Tier,
    best_goodput,
    best_interval_s,
    daly_goodput,
    daly_higher_s,
    daly_lower_s,
    daly_wall_s,
    ettr,
    first_order_overhead,
    goodput,
    goodput_sd,
    intervals_within_s,
    one_plus_lambert,
    restart_for_goodput_s,
    shares,
    two_tiers,
    young_s,
)

SAVE, RESTART, MTBF = 33, 600, 11_160
DAY = 86_400


# ── published figures ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("mtbf_min", "daly", "young"), [(1440, 117, 120), (360, 57, 60)])
def test_both_intervals_are_those_in_the_captions_of_daly_s_figures(mtbf_min, daly, young):
    assert round(daly_higher_s(5, mtbf_min)) == daly
    assert round(young_s(5, mtbf_min)) == young


def test_the_caption_of_daly_s_figure_of_frequent_failures():
    assert round(daly_higher_s(5, 15), 1) == 9.1
    assert round(young_s(5, 15), 2) == 12.25


@pytest.mark.parametrize(
    ("save", "restart", "mtbf", "young", "with_restart", "daly", "optimum"),
    [(10, 600, 6000, 346.4, 363.3, 339.8, 339.7758), (30, 120, 120, 84.9, 120, 66.0, 66.1462)],
)
def test_the_formulas_in_circulation_are_told_apart(
    save, restart, mtbf, young, with_restart, daly, optimum
):
    assert young_s(save, mtbf) == pytest.approx(young, rel=1e-3)
    assert daly_lower_s(save, mtbf, restart) + save == pytest.approx(with_restart, rel=1e-3)
    assert daly_higher_s(save, mtbf) == pytest.approx(daly, rel=1e-3)
    assert best_interval_s(save, mtbf) == pytest.approx(optimum, rel=1e-6)


def test_the_optimum_at_llama_3_s_rate():
    assert round(best_interval_s(SAVE, MTBF) / 60, 2) == 13.94
    assert round(daly_higher_s(SAVE, MTBF) / 60, 2) == 13.94
    assert round(best_goodput(SAVE, RESTART, MTBF), 6) == 0.877859
    assert round(young_s(SAVE, MTBF) / 60, 2) == 14.30
    assert round(goodput(young_s(SAVE, MTBF), SAVE, RESTART, MTBF), 6) == 0.877838


def test_goodput_follows_the_exact_curve():
    table = {2: 0.73921, 4: 0.82411, 8: 0.86768, 14: 0.87786, 16: 0.87723, 20: 0.87350}
    table |= {32: 0.85369, 64: 0.78705, 128: 0.65571}
    assert {m: round(goodput(m * 60, SAVE, RESTART, MTBF), 5) for m in table} == table


def test_the_first_order_form_is_optimistic_one_way_and_pessimistic_the_other():
    overhead = first_order_overhead(best_interval_s(SAVE, MTBF), SAVE, RESTART, MTBF)
    exact = best_goodput(SAVE, RESTART, MTBF)
    assert round(100 * (1 / (1 + overhead) - exact), 1) == 0.7
    assert round(100 * (exact - (1 - overhead)), 1) == 0.9


def test_intervals_that_cost_less_than_a_fifth_of_a_point():
    low_s, high_s = intervals_within_s(SAVE, RESTART, MTBF, 0.002)
    assert (round(low_s / 60, 1), round(high_s / 60, 1)) == (10.9, 17.8)


def test_one_run_of_54_days_is_known_to_four_tenths_of_a_point():
    assert round(100 * goodput_sd(14 * 60, SAVE, RESTART, MTBF, 54 * DAY), 2) == 0.41


@pytest.mark.parametrize(
    ("gpus", "hours", "minutes", "slow", "quick", "both"),
    [
        (1_024, 49.6, 56.9, 0.9776, 0.9802, 0.9922),
        (16_384, 3.10, 13.9, 0.8779, 0.9152, 0.9652),
        (32_768, 1.55, 9.75, 0.8082, 0.8763, 0.9481),
        (100_000, 0.508, 5.4, 0.6188, 0.7712, 0.8984),
    ],
)
def test_more_gpus_of_the_same_kind_fail_more_often_and_reach_less(
    gpus, hours, minutes, slow, quick, both
):
    mtbf_s = job_mtbf_s(3.1 * 3600 * 16_384, Level.DEVICE, gpus)
    assert mtbf_s / 3600 == pytest.approx(hours, rel=1e-3)
    assert best_interval_s(33, mtbf_s) / 60 == pytest.approx(minutes, rel=6e-3)
    assert round(best_goodput(33, 600, mtbf_s), 4) == slow
    assert round(best_goodput(33, 120, mtbf_s), 4) == quick
    assert round(best_goodput(5, 60, mtbf_s), 4) == both


def test_what_a_goodput_of_nine_tenths_takes_and_that_nothing_gives_nineteen_twentieths():
    assert round(restart_for_goodput_s(0.90, SAVE, MTBF) or 0) == 311
    assert restart_for_goodput_s(0.95, SAVE, MTBF) is None


def test_jobs_fail_as_often_as_meta_published():
    per_node_s = DAY / 6.50e-3
    hours = [
        round(job_mtbf_s(per_node_s, Level.NODE, gpus) / 3600, 2) for gpus in (131_072, 16_384)
    ]
    assert hours == [0.23, 1.80]
    assert round(job_mtbf_s(per_node_s, Level.NODE, 1_024) / 3600, 1) == 28.8


def test_the_effective_training_time_ratio_worked_by_hand():
    # 10 nodes × 0.01 a day: a failure in 10 days; each costs 864 s + half of 1728 s: 0.002 of the
    # time; a save of 172.8 s costs a tenth of the work.
    assert ettr(10, 0.01, 1728, 172.8, 864) == pytest.approx((1 - 0.002) / 1.1)
    assert ettr(100_000, 1.0, 1728, 172.8, 864) == 0.0


@pytest.mark.parametrize(("share", "simulated"), [(0.8, 0.928), (0.45, 0.899), (0.23, 0.887)])
def test_two_tiers_to_first_order_are_a_little_above_the_simulated_ones(share, simulated):
    told = two_tiers(Tier(3, 120), Tier(33, 600), MTBF, share)
    assert 0 < told.goodput - simulated < 0.006


def test_a_fast_tier_that_serves_nothing_costs_nothing_and_changes_nothing():
    told = two_tiers(Tier(3, 120), Tier(33, 600), MTBF, 0.0)
    assert told.fast_interval_s == math.inf
    assert told.durable_interval_s == young_s(33, MTBF)
    assert told.overhead == pytest.approx(first_order_overhead(young_s(33, MTBF), 33, 600, MTBF))


# ── rates ───────────────────────────────────────────────────────────────────────────────────────


def test_the_level_of_a_mean_time_between_failures_is_asked_for():
    assert job_mtbf_s(50_000, Level.DEVICE, 100_000) == 0.5
    assert job_mtbf_s(50_000, Level.DEVICE, 8) == 6_250
    assert job_mtbf_s(50_000, Level.NODE, 4, 4) == 50_000  # one host, one failure
    assert job_mtbf_s(50_000, Level.NODE, 5, 4) == 25_000
    assert job_mtbf_s(50_000, Level.JOB, 100_000) == 50_000


def test_three_failures_in_an_hour_are_no_mean_time_of_twenty_minutes():
    rate = failure_rate(3, 3600)
    assert rate.mtbf_s == 1200
    low_s, high_s = rate.mtbf_within_s(0.9)
    # 2·T·λ is chi-squared with 7 degrees of freedom: its 5 % and 95 % points are 2.167 and 14.067
    assert low_s == pytest.approx(7200 / 14.067, rel=1e-4)
    assert high_s == pytest.approx(7200 / 2.167, rel=1e-3)


def test_an_hour_without_a_failure_says_something_too():
    rate = failure_rate(0, 3600)
    assert rate.mtbf_s is None
    # chi-squared with one degree of freedom: 95 % point 3.8415
    assert rate.mtbf_within_s(0.9)[0] == pytest.approx(7200 / 3.8415, rel=1e-4)


def test_the_posterior_of_a_rate_covers_the_truth_as_often_as_it_says():
    chance = random.Random(1)
    runs, held = 4000, 0
    within = cache(lambda failures: failure_rate(failures, 5.0).mtbf_within_s(0.9))
    for _ in range(runs):
        failures, at = 0, chance.expovariate(1)
        while at < 5:
            failures, at = failures + 1, at + chance.expovariate(1)
        low_s, high_s = within(failures)
        held += low_s <= 1 <= high_s
    # Jeffreys' interval holds 0.9 on average over rates; at one rate it is off by some points
    assert 0.87 < held / runs < 0.94


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2000), st.floats(0.001, 0.999))
def test_the_quantile_is_the_inverse_of_the_distribution(failures, probability):
    quantile = failure_rate(failures, 1.0).quantile_per_s(probability)
    assert fleet._below(failures + 0.5, quantile) == pytest.approx(probability, rel=1e-8)


# ── the slowest of many ─────────────────────────────────────────────────────────────────────────


def test_the_slowest_of_few_is_as_far_off_as_tables_say():
    known = {1: 0.0, 2: 1 / math.sqrt(math.pi), 3: 1.5 / math.sqrt(math.pi), 100: 2.507594}
    assert {n: expected_slowest(n) for n in known} == pytest.approx(known, abs=1e-6)


def test_the_slowest_of_one_is_its_mean():
    assert expected_slowest(1, lambda z: math.exp(0.3 * z)) == pytest.approx(math.exp(0.045))


def test_the_slowest_of_a_million_is_near_its_limit():
    # Gumbel's limit: √(2 ln N) - (ln ln N + ln 4π)/(2√(2 ln N)) + γ/√(2 ln N)
    root = math.sqrt(2 * math.log(1e6))
    limit = root - (math.log(math.log(1e6)) + math.log(4 * math.pi)) / (2 * root) + 0.5772 / root
    assert expected_slowest(10**6) == pytest.approx(limit, rel=0.01)


def test_the_slowest_of_many_is_the_mean_of_draws():
    chance = random.Random(2)
    slowest = [max(math.exp(chance.gauss(0, 0.2)) for _ in range(50)) for _ in range(4000)]
    error = statistics.stdev(slowest) / math.sqrt(len(slowest))
    told = expected_slowest(50, lambda z: math.exp(0.2 * z))
    assert abs(statistics.fmean(slowest) - told) < 4 * error  # fails once in 16,000 seeds


def test_one_slow_device_slows_all():
    assert persistent_slowdown(1, 0.25, 3) == 1.5
    assert persistent_slowdown(2, 0.5, 3) == 2.5
    assert persistent_slowdown(1_000_000, 0.001, 2) == 2.0
    assert persistent_slowdown(16, 0.0, 2) == 1.0
    assert persistent_slowdown(16, 1.0, 2) == 2.0


# ── each against the others ─────────────────────────────────────────────────────────────────────

numbers = st.floats(1e-3, 1e6)


@settings(max_examples=200, deadline=None)
@given(numbers, numbers, numbers)
def test_no_other_interval_is_better_than_the_best(save, restart, mtbf):
    best_s = best_interval_s(save, mtbf)
    peak = goodput(best_s, save, restart, mtbf)
    for factor in (0.5, 0.9, 0.999, 1.001, 1.1, 2):
        assert goodput(best_s * factor, save, restart, mtbf) <= peak * (1 + 1e-12)
    assert peak == pytest.approx(best_goodput(save, restart, mtbf), rel=1e-6, abs=1e-15)


@given(st.floats(1e-9, 30))
def test_the_root_satisfies_lambert_s_equation(x):
    w = one_plus_lambert(x) - 1
    assert w * math.exp(w) == pytest.approx(-math.exp(-1 - x), rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(numbers, numbers, numbers, numbers)
def test_the_shares_sum_to_the_whole(interval, save, restart, mtbf):
    told = shares(interval, save, restart, mtbf)
    parts = (told.work, told.checkpoint, told.lost, told.restart)
    assert sum(parts) == pytest.approx(1)
    assert min(parts) >= -1e-12


def test_a_save_that_costs_nothing_is_made_all_the_time():
    assert best_interval_s(0, MTBF) == 0
    assert best_goodput(0, RESTART, MTBF) == MTBF / (MTBF + RESTART)
    assert best_interval_s(1e-9, MTBF) == pytest.approx(young_s(1e-9, MTBF), rel=1e-6)
    assert daly_higher_s(1e-9, MTBF) == pytest.approx(young_s(1e-9, MTBF), rel=1e-6)


def test_a_save_longer_than_twice_the_time_between_failures():
    assert daly_higher_s(2 * MTBF, MTBF) == MTBF
    assert daly_higher_s(3 * MTBF, MTBF) == MTBF
    assert best_interval_s(2 * MTBF, MTBF) == pytest.approx(MTBF, rel=0.06)
    assert best_interval_s(50 * MTBF, MTBF) == MTBF
    assert daly_higher_s(2 * MTBF * (1 - 1e-9), MTBF) == pytest.approx(MTBF, rel=0.12)


def test_without_a_restart_the_models_are_one():
    for interval in (60, 900, 9000):
        assert daly_goodput(interval, SAVE, 0, MTBF) == goodput(interval, SAVE, 0, MTBF)
    assert daly_lower_s(SAVE, MTBF, 0) == young_s(SAVE, MTBF) - SAVE


def test_failures_in_the_restart_cost_something_and_move_no_optimum():
    best_s = best_interval_s(SAVE, MTBF)
    assert daly_goodput(best_s, SAVE, RESTART, MTBF) < goodput(best_s, SAVE, RESTART, MTBF)
    for factor in (0.9, 1.1):
        around = daly_goodput(best_s * factor, SAVE, RESTART, MTBF)
        assert around < daly_goodput(best_s, SAVE, RESTART, MTBF)
    assert daly_wall_s(3600, best_s, SAVE, RESTART, MTBF) == 3600 / daly_goodput(
        best_s, SAVE, RESTART, MTBF
    )


def test_what_cannot_be_done_takes_for_ever():
    assert goodput(1, 1e6, 0, 1) == 0
    assert daly_wall_s(1, 1, 1, 1e6, 1) == math.inf


# ── against draws ───────────────────────────────────────────────────────────────────────────────


def cycles(count: int, interval: float, save: float, mtbf: float, seed: int) -> list[float]:
    """Work kept between two failures, and the time between them, by drawing the failures."""
    chance = random.Random(seed)
    ups = [chance.expovariate(1 / mtbf) for _ in range(count)]
    kept = [interval * int(up // (interval + save)) for up in ups]
    return [sum(kept), sum(ups)]


@pytest.mark.parametrize("interval", [120, 840, 7680])
def test_the_exact_goodput_and_its_spread_are_those_of_draws(interval):
    runs = [cycles(400, interval, SAVE, MTBF, seed) for seed in range(200)]
    told = [kept / (up + 400 * RESTART) for kept, up in runs]
    error = statistics.stdev(told) / math.sqrt(len(told))
    exact = goodput(interval, SAVE, RESTART, MTBF)
    assert abs(statistics.fmean(told) - exact) < 4 * error + 1e-4  # 4 sd; 1e-4: ratio of means
    horizon_s = 400 * (MTBF + RESTART)
    sd = goodput_sd(interval, SAVE, RESTART, MTBF, horizon_s)
    assert statistics.stdev(told) == pytest.approx(sd, rel=0.2)  # sd of 200 runs is known to 5 %


# ── what cannot be ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: young_s(-1, 60), "save_s = -1 is below 0: give a larger one"),
        (lambda: young_s(33, 0), "mtbf_s = 0 is not above 0: give a larger one"),
        (lambda: goodput(0, 33, 600, 60), "interval_s = 0 is not above 0: give a larger one"),
        (lambda: goodput(60, 33, -600, 60), "restart_s = -600 is below 0: give a larger one"),
        (lambda: best_interval_s(33, math.nan), "mtbf_s = nan is not finite: give a plain number"),
        (lambda: best_interval_s(33, math.inf), "mtbf_s = inf is not finite: give a plain number"),
        (
            lambda: best_interval_s(33, "3.1h"),  # type: ignore[arg-type]  # what people do
            "mtbf_s = '3.1h' is not a number in seconds: give a plain number",
        ),
        (
            lambda: goodput_sd(60, 33, 600, 60, 0),
            "horizon_s = 0 is not above 0: give a larger one",
        ),
        (lambda: ettr(0, 1, 60, 1, 1), "nodes = 0 is below 1: give a larger one"),
        (
            lambda: two_tiers(Tier(1, 1), Tier(1, 1), 60, 80),
            "share = 80 is above 1: give a smaller one",
        ),
        (lambda: restart_for_goodput_s(95, 33, 60), "target = 95 is above 1: give a smaller one"),
        (lambda: failure_rate(-1, 60), "failures = -1 is below 0: give a larger one"),
        (
            lambda: failure_rate(1.5, 60),  # type: ignore[arg-type]  # what people do
            "failures = 1.5 is not a whole number: failures are counted",
        ),
        (lambda: failure_rate(1, 0), "up_s = 0 is not above 0: give a larger one"),
        (lambda: expected_slowest(0), "count = 0 is below 1: give a larger one"),
        (lambda: persistent_slowdown(4, 0.1, 0.9), "slowdown = 0.9 is below 1: give a larger one"),
        (
            lambda: job_mtbf_s(1, Level.DEVICE, 0),
            "devices = 0 is below 1: give a larger one",
        ),
    ],
)
def test_an_impossible_number_is_named_with_its_rule(call: Callable[[], object], message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


def test_theory_offers_what_it_lists():
    assert all(hasattr(theory, name) for name in theory.__all__)
