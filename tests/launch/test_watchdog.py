"""Whether the job hangs, and at which ranks."""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.slots import Mark, Slot, Stage
from launch import progress, watchdog
from launch.progress import HOUR_NS, NS, STEADY_STEPS, Progress, Steps, Watched
from launch.watchdog import Alarm, Alive, Bound, Limits, decide

STEP_NS = 2_500_000_000
LIMITS = Limits()
STEADY = Steps(((0, NS // 10),), STEADY_STEPS)
"""Steps of a tenth of a second."""


def _slot(step: int = 7, reached: int = 0, mark: Mark = Mark.STEPPING, **rest: object) -> Slot:
    slot = Slot(1, 100, mark, Stage.BOUNDARY, step, reached, step, 0, 0, NS // 20, NS // 20, 1.0)
    return replace(slot, **rest)  # type: ignore[arg-type]  # fields of a slot


def _decide(
    now_s: float, ranks: Sequence[tuple[Slot | None, float]], limits: Limits = LIMITS
) -> Alive | Alarm:
    """What is decided of ranks that show a slot each since so many seconds."""
    known = {rank: Progress(slot, int(since_s * NS)) for rank, (slot, since_s) in enumerate(ranks)}
    return decide(int(now_s * NS), known, STEADY, limits)


# ── how long is too long ────────────────────────────────────────────────────────────────────────


def test_a_rank_that_stops_in_a_step_is_found_within_three_seconds():
    ranks = [(_slot(reached=5, stage=Stage.REDUCING), 10.0), (_slot(stage=Stage.LOADING), 10.0)]
    assert _decide(12.5, ranks) == Alive()
    assert _decide(12.6, ranks) == Alarm(
        (1,), "in step 8, in the data loader", 2_600_000_000, Bound(STEP_NS, "--hang-after")
    )
    assert STEP_NS + 2 * watchdog.LOOK_S * NS <= 3 * NS


def test_the_reason_of_an_alarm_names_what_was_done_how_long_and_the_limit():
    alarm = _decide(12.6, [(_slot(stage=Stage.UPDATING), 10.0)])
    assert isinstance(alarm, Alarm)
    assert alarm.reason == (
        "made no progress for 2.6 s in step 8, in the optimizer (limit: 2.5 s, --hang-after)"
    )


def test_long_steps_may_take_five_times_the_slowest_of_the_last_day():
    steps = Steps(((0, 2 * NS), (1, NS)), STEADY_STEPS)
    assert watchdog.bound(_slot(), steps, LIMITS) == Bound(
        10 * NS, "5 × the slowest normal step of the last day"
    )


@pytest.mark.parametrize(
    ("slot", "bound"),
    [
        (None, Bound(600 * NS, "--startup-limit")),
        (_slot(mark=Mark.JOINING), Bound(600 * NS, "--startup-limit")),
        (_slot(mark=Mark.GROUPING), Bound(600 * NS, "--startup-limit")),
        (_slot(mark=Mark.SETTING_UP), Bound(600 * NS, "--startup-limit")),
        (_slot(mark=Mark.RESTORING), Bound(600 * NS, "--restore-limit")),
        (_slot(taken=0), Bound(1200 * NS, "--first-step-limit")),
        (_slot(mark=Mark.EVALUATING), Bound(1200 * NS, "--evaluation-limit")),
        (_slot(mark=Mark.SAVING), Bound(900 * NS, "--save-limit")),
        (_slot(), Bound(STEP_NS, "--hang-after")),
        (_slot(mark=Mark.DRAINED), None),
        (_slot(mark=Mark.FINISHED), None),
    ],
)
def test_each_phase_has_a_limit_of_its_own(slot: Slot | None, bound: Bound | None):
    assert watchdog.bound(slot, STEADY, LIMITS) == bound


def test_a_save_of_three_times_the_step_limit_is_none_and_one_above_its_own_names_it():
    saving = [(_slot(mark=Mark.SAVING), 0.0), (_slot(mark=Mark.SAVING), 0.0)]
    limits = replace(LIMITS, save_ns=20 * NS)
    assert _decide(9.0, saving, limits) == Alive()
    assert _decide(20.5, saving, limits) == Alarm(
        (0, 1), "while saving after step 7", 20_500_000_000, Bound(20 * NS, "--save-limit")
    )


def test_until_some_normal_steps_were_seen_a_step_may_take_as_long_as_a_first_one():
    few = Steps(((0, NS),), STEADY_STEPS - 1)
    assert watchdog.bound(_slot(), few, LIMITS) == Bound(1200 * NS, "--first-step-limit")


def test_after_an_alarm_that_step_gets_more_patience_and_nothing_else_does():
    alarms = {7: 1, 9: 2}
    for step, bound in (
        (7, Bound(10 * NS, "4 × as there was an alarm at this step, --hang-after")),
        (8, Bound(STEP_NS, "--hang-after")),
        (9, Bound(40 * NS, "16 × as there was an alarm at this step, --hang-after")),
    ):
        assert watchdog.bound(_slot(step), STEADY, LIMITS, alarms) == bound
    assert watchdog.bound(_slot(mark=Mark.SAVING), STEADY, LIMITS, alarms) == Bound(
        900 * NS, "--save-limit"
    )


# ── who it is ───────────────────────────────────────────────────────────────────────────────────


def test_ranks_that_wait_for_an_evaluation_of_rank_0_are_no_hang():
    ranks = [(_slot(7, 9, Mark.EVALUATING), 0.0), (_slot(8, 5), 1.0), (_slot(8, 5), 1.0)]
    assert _decide(1000.0, ranks) == Alive()
    alarm = _decide(1201.0, ranks)
    assert isinstance(alarm, Alarm)
    assert alarm.suspects == (0,)
    assert alarm.doing == "while evaluating after step 7"


def test_a_rank_behind_is_found_though_others_go_on():
    alarm = _decide(10.0, [(_slot(9), 10.0), (_slot(7), 1.0)])
    assert isinstance(alarm, Alarm)
    assert alarm.suspects == (1,)


def test_a_rank_that_waits_for_a_slower_one_is_no_hang():
    assert _decide(10.0, [(_slot(7, 5), 1.0), (_slot(7, 3), 9.9)]) == Alive()
    assert _decide(10.0, [(_slot(7, 3), 1.0), (_slot(7, 3), 9.9)]) == Alive()


def test_equals_are_suspects_alike():
    alarm = _decide(10.0, [(_slot(7, 3), 1.0), (_slot(7, 3), 1.0), (_slot(7, 4), 1.0)])
    assert isinstance(alarm, Alarm)
    assert alarm.suspects == (0, 1)


def test_a_rank_that_never_joined_is_the_one_that_the_others_wait_for():
    waiting = _slot(0, mark=Mark.GROUPING)
    alarm = _decide(700.0, [(waiting, 1.0), (None, 0.0), (waiting, 1.0)])
    assert isinstance(alarm, Alarm)
    assert (alarm.suspects, alarm.doing) == ((1,), "before it joined")


def test_a_rank_that_is_done_is_nobody_s_excuse_and_no_suspect():
    done = (_slot(9, mark=Mark.FINISHED), 0.0)
    assert _decide(10_000.0, [done, done]) == Alive()
    alarm = _decide(10_000.0, [done, (_slot(9, mark=Mark.SAVING), 0.0)])
    assert isinstance(alarm, Alarm)
    assert alarm.suspects == (1,)


# ── from look to look ───────────────────────────────────────────────────────────────────────────


def _looks(
    slots: Sequence[Mapping[int, Slot | None]], ranks: int = 2, every_s: float = 0.25
) -> Watched:
    """What is known after looks that found these changes."""
    watched = progress.begin(0, ranks)
    shown: dict[int, Slot | None] = dict.fromkeys(range(ranks))
    for number, changes in enumerate(slots, start=1):
        shown |= changes
        now_ns = int(number * every_s * NS)
        watched = progress.look(watched, now_ns, 1, [shown[rank] for rank in range(ranks)])
    return watched


def test_time_runs_from_the_last_change():
    watched = _looks([{0: _slot(2), 1: _slot(1)}, {0: _slot(3)}, {}, {}])
    assert [rank.since_ns for rank in watched.ranks] == [NS // 2, NS // 4]
    assert watched.clock_ns == NS


def test_a_rank_counts_as_waiting_from_when_the_one_before_it_moved_last():
    ahead, behind = _slot(8), _slot(7)
    watched = _looks([{0: ahead, 1: behind}, {}, {}, {1: _slot(7, 1)}])
    assert [rank.since_ns for rank in watched.ranks] == [NS, NS]


def test_one_that_was_an_equal_may_have_been_waited_for_too():
    watched = _looks([{0: _slot(7), 1: _slot(7)}, {}, {}, {1: _slot(7, 1)}])
    assert [rank.since_ns for rank in watched.ranks] == [NS, NS]


def test_what_another_attempt_left_in_a_slot_says_nothing():
    watched = _looks([{0: _slot(1, attempt=2), 1: _slot(3)}])
    assert watched.ranks[0].slot is None


def test_another_process_clock_says_nothing():
    watched = _looks([{0: _slot(1)}, {0: _slot(1, updated_ns=10**18)}, {}])
    assert watched.ranks[0].since_ns == NS // 4


def test_a_launcher_that_slept_wakes_without_an_alarm():
    watched = progress.begin(0, 2)
    slots = [_slot(1), _slot(1)]
    watched = progress.look(watched, NS // 4, 1, slots)
    for now_s in (0.5, 3600.0, 7200.0):
        watched = progress.look(watched, int(now_s * NS), 1, slots)
        assert decide(watched.clock_ns, dict(enumerate(watched.ranks)), STEADY, LIMITS) == Alive()
    watched = progress.look(watched, 7201 * NS, 1, slots)
    alarm = decide(watched.clock_ns, dict(enumerate(watched.ranks)), STEADY, LIMITS)
    assert isinstance(alarm, Alarm)


def test_a_step_is_timed_by_its_rank_where_it_is_alone_between_two_looks():
    watched = _looks([{0: _slot(1)}, {0: _slot(2)}, {0: _slot(3, own_ns=4 * NS)}], ranks=1)
    assert watched.steps == Steps(((0, 4 * NS + NS // 20),), 2)


def test_several_steps_between_two_looks_took_no_longer_than_all_of_them():
    watched = _looks([{0: _slot(1)}, {}, {0: _slot(9)}], ranks=1)
    assert watched.steps == Steps(((0, NS // 2),), STEADY_STEPS)


@pytest.mark.parametrize("mark", [Mark.EVALUATING, Mark.SAVING])
def test_a_step_with_an_evaluation_or_a_save_in_it_is_no_normal_one(mark: Mark):
    inside = _slot(1, mark=mark, signs=1)
    watched = _looks([{0: _slot(1)}, {0: inside}, {0: _slot(2, signs=2, own_ns=90 * NS)}], ranks=1)
    assert watched.steps == Steps()


def test_the_first_step_of_an_attempt_is_no_normal_one():
    resumed = _slot(10, taken=0)
    watched = _looks([{0: resumed}, {0: _slot(11, taken=1, own_ns=90 * NS)}], ranks=1)
    assert watched.steps == Steps()


def test_of_steps_between_two_looks_of_which_one_was_the_first_the_last_is_timed():
    watched = _looks([{0: _slot(0)}, {0: _slot(9, own_ns=NS)}], ranks=1)
    assert watched.steps == Steps(((0, NS + NS // 20),), STEADY_STEPS)


def test_steps_are_remembered_over_attempts_and_ranks_are_not():
    before = _looks([{0: _slot(1)}, {0: _slot(2)}])
    after = progress.begin(99 * NS, 2, before)
    assert after.steps == before.steps
    assert after.ranks == (Progress(None, before.clock_ns, before.clock_ns),) * 2


def test_a_slow_step_is_forgotten_after_a_day():
    steps = Steps().noted(0, 60 * NS)
    for hour in range(1, 30):
        steps = steps.noted(hour * HOUR_NS, NS)
        assert steps.slowest_ns == (60 * NS if hour < 24 else NS)
    assert len(steps.hours) == 24


def test_memory_is_flat_over_200_000_steps_and_steps_twice_as_long_are_no_hang():
    watched, now_ns, alarms = progress.begin(0, 1), 0, 0
    sizes = []
    for step in range(1, 200_001):
        took_ns = (1 if step < 100_000 else 2) * NS // 2
        now_ns += took_ns
        slot = _slot(step, own_ns=took_ns, wait_ns=1)
        watched = progress.look(watched, now_ns, 1, [slot])
        made = decide(watched.clock_ns, {0: watched.ranks[0]}, watched.steps, LIMITS)
        alarms += isinstance(made, Alarm)
        if step % 50_000 == 0:
            sizes.append(len(pickle.dumps(watched)))  # a value: all that is remembered is in it
    assert alarms == 0
    assert max(sizes) < 1000, "bytes: a day of hours, and no more"


# ── what holds always ───────────────────────────────────────────────────────────────────────────

MARKS = st.sampled_from([Mark.JOINING, Mark.STEPPING, Mark.EVALUATING, Mark.SAVING, Mark.FINISHED])
SLOTS = st.none() | st.builds(_slot, st.integers(0, 3), st.integers(0, 3), MARKS)
RANKS = st.lists(st.tuples(SLOTS, st.floats(0, 2000)), min_size=1, max_size=6)


def _late(slot: Slot | None, since_s: float, now_s: float) -> bool:
    bound = watchdog.bound(slot, STEADY, LIMITS)
    return bound is not None and int(now_s * NS) - int(since_s * NS) > bound.ns


@given(RANKS, st.floats(2000, 5000))
def test_suspects_are_late_and_nobody_in_time_is_where_they_may_wait_for_it(
    ranks: list[tuple[Slot | None, float]], now_s: float
):
    alarm = _decide(now_s, ranks)
    late = [rank for rank, (slot, since_s) in enumerate(ranks) if _late(slot, since_s, now_s)]
    if isinstance(alarm, Alive):
        in_time = [
            progress.position(slot)
            for rank, (slot, _) in enumerate(ranks)
            if rank not in late and watchdog.bound(slot, STEADY, LIMITS) is not None
        ]
        assert not late or all(min(in_time) <= progress.position(ranks[it][0]) for it in late)
        return
    assert set(alarm.suspects) <= set(late)
    where = {progress.position(ranks[rank][0]) for rank in alarm.suspects}
    assert len(where) == 1
    assert all(progress.position(slot) >= min(where) for slot, _ in (ranks[it] for it in late))


@given(st.lists(st.integers(0, 10**12), min_size=2, max_size=20))
def test_the_clock_of_looks_never_runs_faster_than_it_may(instants: list[int]):
    watched = progress.begin(0, 1)
    clocks = [0]
    for now_ns in sorted(instants):
        watched = progress.look(watched, now_ns, 1, [None])
        clocks.append(watched.clock_ns)
    assert all(0 <= late - early <= NS for early, late in pairwise(clocks))


@given(st.lists(st.tuples(st.integers(0, 10**14), st.integers(1, 10**11)), max_size=60))
def test_the_slowest_step_is_one_of_those_of_the_last_day_or_just_before(
    steps: list[tuple[int, int]],
):
    known = Steps()
    noted = sorted(steps)
    for at_ns, took_ns in noted:
        known = known.noted(at_ns, took_ns)
    if noted:
        last_hour = noted[-1][0] // HOUR_NS
        recent = [took for at, took in noted if at // HOUR_NS > last_hour - 24]
        assert known.slowest_ns == max(recent)
        assert len(known.hours) <= 24
