"""The ranks' slots are looked at now and then, and what was slow once gets more patience."""

from pathlib import Path

import pytest

from harness.rundir import RunDir
from harness.slots import Mark, SlotWriter
from launch import lookout
from launch.lookout import Lookout
from launch.progress import NS
from launch.watchdog import Alarm, Bound, Limits


class Clock:
    """CLOCK_MONOTONIC, as the lookout sees it."""

    def __init__(self) -> None:
        self.now_ns = 10**15

    def monotonic_ns(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that the test moves."""
    fake = Clock()
    monkeypatch.setattr(lookout, "time", fake)
    return fake


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run's directory."""
    run = RunDir.at(tmp_path)
    run.create()
    return run


def _alarms(
    watch: Lookout, clock: Clock, run_dir: RunDir, seconds: int
) -> list[tuple[float, Alarm]]:
    """Alarms about rank 0 with when they came, of so many seconds with a look at each half."""
    found = []
    for half in range(1, 2 * seconds + 1):
        clock.now_ns += NS // 2
        alarm = watch.look(run_dir, [0])
        if alarm is not None:
            found.append((half / 2, alarm))
    return found


def _steps(writer: SlotWriter, watch: Lookout, clock: Clock, run_dir: RunDir, *steps: int) -> None:
    for step in steps:
        writer.update(mark=Mark.STEPPING, step=step, own_ns=NS // 10, wait_ns=1)
        assert _alarms(watch, clock, run_dir, 1) == []


def test_each_alarm_in_a_step_makes_the_next_one_there_come_later(clock: Clock, run_dir: RunDir):
    watch = Lookout(Limits(), print)
    for attempt, silent_s in ((1, 2.5), (2, 10), (3, 40)):
        watch.attempt_begins(attempt, 1)
        with SlotWriter(run_dir.slot(0), attempt) as writer:
            _steps(writer, watch, clock, run_dir, 1, 2, 3, 4, 5)
            # The last look saw no change either: half a second has passed.
            first, _ = _alarms(watch, clock, run_dir, round(silent_s + 1))[0]
            assert silent_s - 0.5 <= first <= silent_s + 0.5
    watch.attempt_begins(4, 1)
    with SlotWriter(run_dir.slot(0), 4) as writer:
        _steps(writer, watch, clock, run_dir, *range(1, 8))
        first, _ = _alarms(watch, clock, run_dir, 4)[0]
        assert 2.0 <= first <= 3.0


def test_an_alarm_elsewhere_gives_a_normal_step_no_more_patience(clock: Clock, run_dir: RunDir):
    watch = Lookout(Limits(restore_ns=5 * NS), print)
    watch.attempt_begins(1, 1)
    with SlotWriter(run_dir.slot(0), 1) as writer:
        _steps(writer, watch, clock, run_dir, 1, 2, 3, 4, 5)
    watch.attempt_begins(2, 1)
    with SlotWriter(run_dir.slot(0), 2) as writer:
        writer.update(mark=Mark.RESTORING)
        _, first = _alarms(watch, clock, run_dir, 6)[0]
        assert first.bound == Bound(5 * NS, "--restore-limit")
    watch.attempt_begins(3, 1)
    with SlotWriter(run_dir.slot(0), 3) as writer:
        _steps(writer, watch, clock, run_dir, 1, 2, 3)
        _, second = _alarms(watch, clock, run_dir, 4)[0]
        assert second.bound == Bound(5 * NS // 2, "--hang-after")


def test_an_alarm_in_one_step_gives_the_steps_before_it_no_more_patience(
    clock: Clock, run_dir: RunDir
):
    watch = Lookout(Limits(), print)
    for attempt, steps in ((1, (1, 2, 3, 4, 5)), (2, (1, 2, 3))):
        watch.attempt_begins(attempt, 1)
        with SlotWriter(run_dir.slot(0), attempt) as writer:
            _steps(writer, watch, clock, run_dir, *steps)
            _, alarm = _alarms(watch, clock, run_dir, 4)[0]
            assert alarm.bound == Bound(5 * NS // 2, "--hang-after")


def test_looks_come_four_times_a_second_and_no_more_often(clock: Clock, run_dir: RunDir):
    watch = Lookout(Limits(startup_ns=0), print)
    assert watch.due_s() is None
    watch.attempt_begins(1, 1)
    assert watch.due_s() == 0.25
    clock.now_ns += NS // 5
    assert watch.due_s() == pytest.approx(0.05)
    clock.now_ns += NS // 10
    with SlotWriter(run_dir.slot(0), 1):
        assert watch.look(run_dir, [0]) is None
        clock.now_ns += NS // 5
        assert watch.look(run_dir, [0]) is None
        clock.now_ns += NS // 10
        assert isinstance(watch.look(run_dir, [0]), Alarm)


def test_where_nobody_ever_joined_nothing_is_alarming_and_that_is_said_once(
    clock: Clock, run_dir: RunDir
):
    said: list[str] = []
    watch = Lookout(Limits(startup_ns=2 * NS), said.append)
    watch.attempt_begins(1, 1)
    assert _alarms(watch, clock, run_dir, 60) == []
    assert said == ["no rank has called harness.join after 2 s: hangs go unnoticed"]
    run_dir.worker(0).write_text("{}")  # one did, in an attempt before
    assert len(_alarms(watch, clock, run_dir, 1)) > 0


def test_a_lookout_without_limits_never_looks(clock: Clock, run_dir: RunDir):
    watch = Lookout(None, print)
    assert watch.startup_s is None
    watch.attempt_begins(1, 1)
    assert watch.due_s() is None
    assert _alarms(watch, clock, run_dir, 5000) == []
