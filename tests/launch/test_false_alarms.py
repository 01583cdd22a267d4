"""Thirty simulated days of steps with heavy tails: few alarms, and every true hang is found in time.

A step takes as long as the slowest of its ranks. Each rank's own time is lognormal around 1 s (σ 0.1),
and four times a day it pauses for a time with a Pareto tail: at least 0.3 s, index 2, so without a
finite variance. Once a week everything takes twice as long for six hours. Nothing is asserted of one
lucky draw: there are four of thirty days, with seeds that are written here.
"""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.slots import Mark, Slot, Stage
from launch.progress import NS, STEADY_STEPS, Progress, Steps
from launch.watchdog import Alarm, Limits, decide

DAYS = 30
DAY_S = 86_400
SEEDS = (1, 2, 3, 4)
SLOT = Slot(1, 100, Mark.STEPPING, Stage.REDUCING, 7, 0, 7, 0, 0, 1, 1, 0.0)
Z = np.arange(-6, 8, 0.002)
CDF = np.array([0.5 * math.erfc(-z / math.sqrt(2)) for z in Z])
Seconds = NDArray[np.float64]


def _steps_s(rng: np.random.Generator, ranks: int) -> Seconds:
    """How long each step of the job takes."""
    count = DAYS * DAY_S
    own_s = np.exp(0.1 * np.interp(rng.random(count), CDF**ranks, Z))
    pauses = rng.poisson(ranks * 4 / DAY_S, count)
    pause_s = np.zeros(count)
    lengths_s = 0.3 / np.sqrt(1 - rng.random(pauses.sum()))
    np.maximum.at(pause_s, np.repeat(np.arange(count), pauses), lengths_s)
    slow = np.arange(count) % (7 * DAY_S) < 6 * 3600
    took_s: Seconds = (own_s + pause_s) * np.where(slow, 2, 1)
    return took_s[np.cumsum(took_s) < DAYS * DAY_S]


def _worth_a_look(took_s: Seconds) -> NDArray[np.int64]:
    """Steps that change what is remembered or could be an alarm: one more than the slowest of its
    hour so far, or longer than 2.5 s. The others change no maximum."""
    hour = np.cumsum(took_s) // 3600
    so_far = np.maximum.accumulate(hour * 1e6 + took_s)
    return np.flatnonzero(np.diff(so_far, prepend=-1.0) > 0.0)


def _judged(took_s: Seconds) -> tuple[int, list[tuple[float, float]]]:
    """False alarms; and for a hang at the end of each day, the bound of the step that it was in and
    the slowest step before it."""
    at_s = np.cumsum(took_s)
    slowest_s = np.maximum.accumulate(took_s)
    chosen = np.union1d(_worth_a_look(took_s), np.flatnonzero(took_s > 2.5))
    steps, alarms, hangs, day = Steps(count=STEADY_STEPS), 0, [], 1
    for index in chosen.tolist():
        while at_s[index] > day * DAY_S:
            found = _silent(steps, 10**6 * NS)
            assert isinstance(found, Alarm)
            hangs.append((found.bound.ns / NS, float(slowest_s[index - 1])))
            day += 1
        took_ns = int(took_s[index] * NS)
        alarms += isinstance(_silent(steps, took_ns), Alarm)
        steps = steps.noted(int(at_s[index] * NS), took_ns)
    return alarms, hangs


def _silent(steps: Steps, for_ns: int) -> object:
    """What is decided of a job in which nobody has shown anything for so long."""
    return decide(for_ns, {0: Progress(SLOT, since_ns=0)}, steps, Limits())


@pytest.mark.parametrize("ranks", [8, 512, 2000])
def test_less_than_one_alarm_in_ten_days_and_every_hang_is_found_in_time(ranks: int):
    alarms = 0
    for seed in SEEDS:
        false, hangs = _judged(_steps_s(np.random.default_rng([seed, ranks]), ranks))
        alarms += false
        assert len(hangs) >= DAYS - 1
        # Of the last day, so of all days together at most.
        assert all(bound_s <= max(3.0, 5 * slowest_s) for bound_s, slowest_s in hangs)
    per_day = alarms / (DAYS * len(SEEDS))
    print(f"{ranks} ranks: {alarms} alarms in {DAYS * len(SEEDS)} days, {per_day:.3f} a day")
    assert per_day < 0.1
