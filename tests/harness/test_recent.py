from hypothesis import given
from hypothesis import strategies as st

from harness.phases import Phase
from harness.recent import MOST_READINGS, MOST_SEGMENTS, WINDOW_NS, Curve, Recent
from harness.segments import Segment
from harness.tallies import Reading
from harness.timeline import Fold, timeline
from tests.harness import stories

S = 1_000_000_000


def test_what_is_recent_of_a_short_run_is_its_whole_timeline():
    entries = stories.entries(stories.KILLED_ONCE)
    fold = Fold()
    for entry in entries:
        fold.feed(entry)
    assert fold.recent.segments == timeline(entries).segments
    assert [one for one in fold.recent.segments if one.lost]


def test_the_curve_holds_each_step_once_also_of_a_run_that_went_back():
    fold = Fold()
    for entry in stories.entries(stories.KILLED_ONCE):
        fold.feed(entry)
    steps = [one.step for one in fold.recent.losses.readings]
    assert steps == [1, 2, 3, 4]


def test_time_before_the_window_falls_out():
    recent = Recent()
    recent.settle([Segment(Phase.WORK, 0, 10 * S, 0)])
    recent.settle([Segment(Phase.RESTART, 10 * S, 20 * S, 0)])
    late_ns = 20 * S + WINDOW_NS
    recent.settle([Segment(Phase.WORK, 20 * S, late_ns, 1)])
    assert [one.phase for one in recent.segments] == [Phase.RESTART, Phase.WORK]
    recent.settle([Segment(Phase.DRAIN, late_ns, late_ns + 1, 1)])
    assert [one.phase for one in recent.segments] == [Phase.WORK, Phase.DRAIN]


def test_a_run_that_changes_phase_all_the_time_is_remembered_for_less():
    recent = Recent()
    for at in range(3 * MOST_SEGMENTS):
        recent.settle([Segment((Phase.WORK, Phase.SAVE_STALL)[at % 2], at, at + 1, 0)])
    assert len(recent.segments) == MOST_SEGMENTS
    assert recent.segments[-1].end_ns == 3 * MOST_SEGMENTS


def test_losses_of_steps_that_were_lost_leave_the_curve():
    curve = Curve()
    for step, value in ((1, 5.0), (2, 4.0), (3, 3.0), (2, 4.5)):
        curve.add(step, value)
    assert curve.readings == [Reading(1, 5.0), Reading(2, 4.5)]


@given(st.integers(1, 5000), st.integers(1, 7))
def test_a_long_curve_gets_coarser_and_keeps_its_ends(count, every):
    curve = Curve()
    for step in range(1, count * every + 1, every):
        curve.add(step, float(step))
    steps = [one.step for one in curve.readings]
    assert steps == sorted(set(steps))
    assert len(steps) <= MOST_READINGS
    assert steps[-1] == (count - 1) * every + 1
    assert steps[0] <= curve.every
    if count > MOST_READINGS:
        assert len(steps) > MOST_READINGS // 4
