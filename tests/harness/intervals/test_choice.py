import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.events import Tier
from harness.intervals.asked import Auto, Off, Seconds, Steps, in_steps, parse
from harness.intervals.choice import Decision, History, Measured, best_s, decide

MEMORY, STORAGE = Tier.MEMORY, Tier.STORAGE
FREE = Auto(Steps(1), Seconds(1e6))


def measured(step_s: float = 0.1, memory_s: float = 0.02, storage_s: float = 0.5) -> Measured:
    """18 failures in 1,900 s, with the prior one in 200 s; of 10, with the prior, memory serves 6.45."""
    history = History(
        failures=18,
        up_s=1900.0,
        returns={MEMORY: 6, STORAGE: 3},
        restart_s={MEMORY: 1.0, STORAGE: 3.0},
    )
    return Measured(step_s, {MEMORY: memory_s, STORAGE: storage_s}, history)


# ── what can be asked ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("20 steps", Steps(20)),
        ("1 step", Steps(1)),
        ("30s", Seconds(30.0)),
        (" 2  min ", Seconds(120.0)),
        ("off", Off()),
        ("auto", Auto(Steps(1), Seconds(1800.0))),
        ("auto 10s..10min", Auto(Seconds(10.0), Seconds(600.0))),
        ("auto ..500 steps", Auto(Steps(1), Steps(500))),
        ("auto 5 steps..", Auto(Steps(5), Seconds(1800.0))),
    ],
)
def test_an_interval_is_steps_or_a_time_or_auto_within_bounds(text: str, asked: object):
    assert parse(text, STORAGE) == asked


def test_memory_has_a_closer_bound_of_its_own():
    assert parse("auto", MEMORY) == Auto(Steps(1), Seconds(600.0))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("20", "'20' has no unit"),
        ("0", "'0' is no interval: write 'off' for none"),
        ("0 steps", "'0 steps' is no interval: write 'off' for none"),
        ("0s", "'0s' is no interval"),
        ("-3s", "'-3s' is no interval"),
        ("7" * 5000, "7'… is no interval: write '20 steps'"),
        ("often", "'often' is not a duration"),
        ("auto 10min..10s", "has bounds the wrong way round"),
        ("auto 10..20s", "'10' has no unit"),
        ("", "'' is not a duration"),
    ],
)
def test_what_cannot_be_asked_is_told_with_its_rule(text: str, rule: str):
    with pytest.raises(ValueError, match=re.escape(rule)):
        parse(text, STORAGE)


# ── by hand ─────────────────────────────────────────────────────────────────────────────────────


def test_the_optimum_of_two_tiers_is_worked_by_hand():
    of = measured()
    assert 1 / of.rate_per_s == pytest.approx(200.0)
    assert of.share == pytest.approx(0.645)
    best = best_s(of, alone=False)
    assert best[MEMORY] == pytest.approx(math.sqrt(2 * 0.02 * 200 / 0.645))  # 3.52 s
    assert best[STORAGE] == pytest.approx(math.sqrt(2 * 0.5 * 200 / 0.355))  # 23.7 s


def test_a_tier_that_is_alone_answers_for_all_failures():
    assert best_s(measured(), alone=True) == pytest.approx(
        {MEMORY: math.sqrt(2 * 0.02 * 200), STORAGE: math.sqrt(2 * 0.5 * 200)}
    )


def test_no_failure_yet_is_half_a_failure_in_half_an_hour():
    of = Measured(0.1, {STORAGE: 0.5}, History())
    assert of.rate_per_s == 1 / 3600
    assert of.share == 0.45
    assert decide(STORAGE, 600, FREE, of, alone=True) == Decision(
        600,
        60.0,
        "60 s is best: a save blocks 0.5 s, a failure in 3600 s; what it is now is as good",
    )


def test_a_choice_moves_by_a_factor_of_two_at_a_time_until_it_is_there():
    of, steps, path = measured(), 50, [50]
    for _ in range(4):
        steps = decide(STORAGE, steps, FREE, of, alone=False).steps
        path.append(steps)
    assert path == [50, 100, 200, 200, 200]  # 200 is as good as 237
    assert [decide(STORAGE, now, FREE, of, alone=False).steps for now in (801, 474)] == [401, 237]


def test_a_choice_says_what_it_rests_on():
    assert decide(MEMORY, 8, FREE, measured(), alone=False).reason == (
        "3.52 s is best: a save blocks 0.02 s, a failure in 200 s, of which memory serves 64%;"
        " by a factor of two at a time"
    )
    assert measured().inputs(MEMORY) == {
        "step_s": 0.1,
        "save_s": 0.02,
        "restart_s": 1.0,
        "failures": 18,
        "up_s": 1900.0,
        "mtbf_s": pytest.approx(200.0),
        "share": pytest.approx(0.645),
    }


def test_storage_rests_for_as_long_as_it_works():
    of = replace(measured(), commit_s=20.0)
    decision = decide(STORAGE, 300, FREE, of, alone=False)
    assert (decision.steps, decision.optimal_s) == (400, best_s(of, alone=False)[STORAGE])
    assert decision.reason.endswith("; a commit takes 20 s, and storage rests as long")
    assert of.inputs(STORAGE)["commit_s"] == 20.0
    assert decide(MEMORY, 35, FREE, of, alone=False).steps == 35


def test_a_bound_of_the_user_s_holds_before_everything_else():
    near = Auto(Steps(1), Seconds(2.0))
    decision = decide(STORAGE, 400, near, measured(), alone=False)
    assert decision.steps == 20
    assert decision.reason.endswith("; a bound holds")
    assert decide(STORAGE, 20, near, measured(), alone=False).steps == 20
    assert decide(MEMORY, 8, Auto(Steps(90), Steps(100)), measured(), alone=False).steps == 90


def test_until_a_save_is_measured_it_is_so_many_steps_or_so_many_seconds():
    quick, slow = Measured(0.1, {}, History()), Measured(6.0, {}, History())
    assert decide(STORAGE, None, FREE, quick, alone=False) == Decision(
        50, None, "no save was measured yet"
    )
    assert decide(STORAGE, None, FREE, slow, alone=False).steps == 10
    assert decide(MEMORY, None, FREE, slow, alone=False).steps == 2
    assert decide(STORAGE, 50, Auto(Steps(1), Steps(7)), quick, alone=False).steps == 7


def test_seconds_are_steps_at_the_pace_of_now_and_do_not_follow_its_noise():
    asked = Seconds(30.0)
    assert decide(STORAGE, None, asked, measured(0.1), alone=False).steps == 300
    assert decide(STORAGE, 300, asked, measured(0.11), alone=False).steps == 300
    assert decide(STORAGE, 300, asked, measured(0.3), alone=False).steps == 100
    assert decide(STORAGE, 300, asked, measured(1e3), alone=False).steps == 1


# ── whatever is measured ────────────────────────────────────────────────────────────────────────

times = st.floats(1e-6, 1e5)
histories = st.builds(
    lambda failures, up_s, memory, storage: History(
        failures, up_s, {MEMORY: memory, STORAGE: storage}
    ),
    st.integers(0, 10_000),
    st.floats(0, 1e9),
    st.integers(0, 10_000),
    st.integers(0, 10_000),
)
anything = st.builds(
    lambda step_s, memory_s, storage_s, history: Measured(
        step_s, {MEMORY: memory_s, STORAGE: storage_s}, history
    ),
    times,
    st.floats(0, 1e4),
    st.floats(0, 1e4),
    histories,
)
lengths = st.one_of(st.builds(Steps, st.integers(1, 10**6)), st.builds(Seconds, times))
bounds = st.builds(Auto, lengths, lengths)
tiers = st.sampled_from([MEMORY, STORAGE])


@given(tiers, st.integers(1, 10**7), bounds, anything, st.booleans())
def test_a_choice_is_at_least_a_step_and_never_beyond_a_bound(
    tier: Tier, now: int, asked: Auto, of: Measured, alone: bool
):
    steps = decide(tier, now, asked, of, alone).steps
    assert steps >= 1
    assert steps <= max(1, in_steps(asked.most, of.step_s))
    most = max(1, math.floor(in_steps(asked.most, of.step_s)))
    assert steps >= min(most, in_steps(asked.least, of.step_s))


@given(tiers, st.integers(1, 10**7), anything, st.booleans())
def test_a_choice_never_moves_by_more_than_a_factor_of_two(
    tier: Tier, now: int, of: Measured, alone: bool
):
    wide = Auto(Steps(1), Steps(10**9))
    assert now <= 2 * decide(tier, now, wide, of, alone).steps <= 4 * now


@given(tiers, st.integers(1, 10**6), bounds, anything, st.booleans())
def test_a_choice_comes_to_rest(tier: Tier, now: int, asked: Auto, of: Measured, alone: bool):
    steps = now
    for _ in range(64):
        steps = decide(tier, steps, asked, of, alone).steps
    assert decide(tier, steps, asked, of, alone).steps == steps


@given(st.integers(50, 10**6), st.floats(0.9, 1.1))
def test_a_choice_at_rest_does_not_follow_noise(wanted: int, noise: float):
    exact = Measured(0.1, {STORAGE: (wanted * 0.1) ** 2 / 7200}, History())
    noisy = Measured(0.1 * noise, exact.save_s, History())
    assert decide(STORAGE, wanted, Auto(Steps(1), Steps(10**9)), exact, True).steps == wanted
    assert decide(STORAGE, wanted, Auto(Steps(1), Steps(10**9)), noisy, True).steps == wanted


@given(anything)
def test_more_failures_never_make_an_interval_longer(of: Measured):
    worse = History(of.history.failures + 1, of.history.up_s, of.history.returns)
    after = best_s(Measured(of.step_s, of.save_s, worse), alone=False)
    assert all(after[tier] <= best for tier, best in best_s(of, alone=False).items())
