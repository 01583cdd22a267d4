import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.signals.spikes import Limits, Losses, stands_out

LIMITS = Limits(window=4, deviations=3.0, in_a_row=2, least=0.01)
LOSSES = st.lists(st.floats(0.1, 10.0), min_size=50, max_size=100)


def steps_of(losses: list[float], limits: Limits = LIMITS) -> list[int]:
    """At which places a spike begins."""
    seen = Losses(limits)
    return [place for place, loss in enumerate(losses) if seen.add(loss) is not None]


def test_a_spike_worked_by_hand():
    # Median 2.0; the deviations from it are 0.2, 0.1, 0.1, 0.2: their median is 0.15.
    before = [1.8, 1.9, 2.1, 2.2]
    scale = 1.4826 * 0.15
    assert stands_out(before, 2.0 + 2.9 * scale, LIMITS) is None
    found = stands_out(before, 3.0, LIMITS)
    assert found is not None
    assert (found.loss, found.usual) == (3.0, 2.0)
    assert found.deviations == pytest.approx(1.0 / scale)


def test_one_hard_batch_is_no_spike_and_a_second_in_a_row_is_told_once():
    usual = [2.0, 2.1, 2.0, 1.9]
    assert steps_of([*usual, 9.0, 2.0, 9.0, 2.0]) == []
    assert steps_of([*usual, 9.0, 9.0, 9.0, 2.0, 2.1]) == [5]


def test_losses_that_do_not_vary_at_all_are_no_alarm_until_they_move():
    assert steps_of([2.0] * 20 + [2.05] * 20) == []
    assert steps_of([2.0] * 90 + [2.5, 2.5], Limits()) == [91]
    assert steps_of([0.0] * 90 + [0.1, 0.1], Limits()) == [91]


@pytest.mark.parametrize("share", [0.2, 0.45, 0.55])
def test_a_loss_that_is_zero_most_of_the_time_is_no_alarm_whenever_it_is_not(share):
    random = np.random.default_rng(4)  # as a hinge's, or that of triplets
    losses = random.exponential(1.0, 3_000) * (random.random(3_000) < share)
    assert steps_of(losses.tolist(), Limits()) == []
    assert steps_of([*losses[:500].tolist(), 50.0, 50.0], Limits()) == [501]


def test_too_few_losses_and_those_that_are_no_number_say_nothing():
    assert steps_of([2.0, 9.0, 9.0], Limits(window=8)) == []
    usual = [2.0, 2.1, 1.8, 1.9, 2.2, 2.05]
    assert steps_of([*usual, math.nan, math.inf, 2.0, math.nan, 9.0, 9.0]) == [11]


@given(LOSSES, st.floats(-5.0, 5.0).map(lambda power: 2.0 ** round(power)))
def test_other_units_of_the_loss_change_nothing(losses, unit):
    limits = Limits(in_a_row=1, deviations=2.0)
    assert steps_of(losses, limits) == steps_of([loss * unit for loss in losses], limits)


@given(LOSSES)
def test_whatever_came_before_a_thousandfold_loss_in_a_row_is_a_spike(losses):
    assert len(losses) in steps_of([*losses, 1e5], Limits(in_a_row=1))
    assert stands_out(losses, min(losses), Limits()) is None


def noise(kind: str, steps: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    random = np.random.default_rng(4)
    if kind == "normal":
        return random.standard_normal(steps)
    if kind == "heavy":
        return random.standard_t(3, steps)
    wandering = np.zeros(steps)
    for place, shock in enumerate(random.standard_normal(steps) * 0.14):
        wandering[place] = 0.99 * wandering[place - 1] + shock
    return wandering


@pytest.mark.parametrize("kind", ["normal", "heavy", "wandering"])
def test_a_loss_that_falls_and_scatters_gives_no_false_alarm_in_ten_thousand_steps(kind):
    step = np.arange(10_000)
    losses = (2.5 + 3.0 * np.exp(-step / 300)) * (1 + 0.05 * noise(kind, len(step)))
    assert steps_of(losses.tolist(), Limits()) == []


def test_a_loss_that_doubles_is_found_at_its_second_step():
    step = np.arange(1_000)
    losses = (2.5 + 3.0 * np.exp(-step / 300)) * (1 + 0.05 * noise("normal", len(step)))
    losses[700:720] *= 2
    assert steps_of(losses.tolist(), Limits()) == [701]
