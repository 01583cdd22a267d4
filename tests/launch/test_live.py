import io
import json
from pathlib import Path

import pytest

from harness.events import (
    AttemptStarted,
    Cause,
    FailureDetected,
    RestoreStarted,
    RunStarted,
    Tier,
    TrainingResumed,
)
from harness.rundir import RunDir
from harness.slots import Mark, SlotWriter
from harness.timeline import Fold
from launch.live import LOOK_S, PLAIN_S, Live
from launch.news import news, seen
from launch.status import Pace, Status, status
from tests.harness import stories


class Hands:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def folded(story: stories.Story) -> Fold:
    fold = Fold()
    for entry in stories.entries(story):
        fold.feed(entry)
    return fold


def watched(run_dir: RunDir, *stages: stories.Story) -> list[str]:
    """What is shown without a terminal while the log grows stage by stage, ten seconds each."""
    out, clock = io.StringIO(), Hands()
    with Live(run_dir, out=out, clock_s=clock) as live:
        for stage in stages:
            stories.add(run_dir, stage)
            clock.now_s += PLAIN_S
            live.poll()
    return out.getvalue().splitlines()


def test_without_a_terminal_there_is_a_line_for_what_happened_and_one_every_ten_seconds(tmp_path):
    run_dir = stories.write(tmp_path / "run", ())
    story = stories.KILLED_ONCE
    lines = watched(
        run_dir,
        [line for line in story if line[0] <= 1640],
        [line for line in story if 1640 < line[0] <= 1900],
        [line for line in story if 1900 < line[0] <= 2400],
        [line for line in story if line[0] > 2400],
    )
    assert lines == [
        "step 3/10 · loss 4.5000 · goodput 67.1% · work · attempt 0",
        "fault 1: kill rank 1",
        "attempt 1 resumes after step 2, from storage: 1 step lost",
        "step 2/10 · loss 4.5000 · goodput 26.3% · warmup · attempt 1 · last fault: kill rank 1",
        "back at work 460 ms after the last finished step",
        "step 4/10 · loss 4.0000 · goodput 37.5% · evaluation · attempt 1 · last fault: kill rank 1",
        "fault 2: skipped: the run has ended",
        "step 4/10 · loss 4.0000 · goodput 37.5% · finished · attempt 1 · last fault: kill rank 1",
    ]


def test_rejected_checkpoints_failed_saves_and_deferred_faults_are_said(tmp_path):
    fold = folded(stories.TROUBLED)
    assert news(seen(Fold()), fold) == [
        "fault 1: deferred: its target is down",
        "checkpoint of step 2, attempt 0, is rejected (checksum): shard 0 differs; the next older one is tried",
        "1 save to storage failed: training goes on without",
    ]
    assert news(seen(fold), fold) == []


def test_an_attempt_that_failed_again_at_once_still_says_where_it_resumed():
    story = [line for line in stories.KILLED_ONCE if line[0] <= 1900]
    story.append((1910, "launcher-0", 1, FailureDetected(0, Cause.SIGNAL, "killed by SIGKILL")))
    before = seen(folded([line for line in story if line[0] <= 1700]))
    assert news(before, folded(story)) == [
        "attempt 1 resumes after step 2, from storage: 1 step lost"
    ]


def test_a_launch_that_goes_on_says_from_where_and_that_other_ranks_may_make_other_bits():
    first = [line for line in stories.KILLED_ONCE if line[0] <= 1900]
    again = [
        (5000, "launcher-1", 2, RunStarted("r1", 3)),
        (5100, "launcher-1", 2, AttemptStarted(3)),
        (5200, "rank-0", 2, RestoreStarted()),
        (5300, "rank-0", 2, TrainingResumed(1, Tier.MEMORY, 0, total_steps=10)),
    ]
    before = seen(folded(first))
    assert news(before, folded([*first, *again])) == [
        "attempt 2 resumes after step 1, from memory: 1 step lost",
        "3 ranks instead of 2: bits may differ from here on",
    ]
    fresh = [*first, *again[:-1], (5300, "rank-0", 2, TrainingResumed(0, None, total_steps=10))]
    assert news(before, folded(fresh)) == ["attempt 2 begins from nothing: 2 steps lost"]


def test_what_happened_before_the_launcher_came_is_no_news(tmp_path):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    assert watched(run_dir, ()) == [
        "step 4/10 · loss 4.0000 · goodput 37.5% · finished · attempt 1 · last fault: kill rank 1"
    ]


def exporter(port: int, pid: int = 7) -> str:
    labels = {"__scheme__": "https", "__meta_harness_pid": str(pid)}
    return json.dumps([{"targets": [f"[::1]:{port}"], "labels": labels}])


def test_where_the_run_is_served_is_said_once_and_again_when_it_moves(tmp_path):
    run_dir, clock, out = stories.write(tmp_path / "run", ()), Hands(), io.StringIO()
    run_dir.exporter.write_text(exporter(2, pid=6))  # of an exporter that was killed
    told = [exporter(2, pid=6), exporter(2), exporter(2), "half of a fi", "{}", exporter(3)]
    with Live(run_dir, out=out, clock_s=clock) as live:
        for text in (*told, exporter(3, pid=8)):
            run_dir.exporter.write_text(text)
            clock.now_s += LOOK_S
            live.poll()
        run_dir.exporter.unlink()
        clock.now_s += LOOK_S
        live.poll()
    said = [line for line in out.getvalue().splitlines() if line.startswith("metrics")]
    assert said == [
        "metrics at https://[::1]:2/metrics, a page at https://[::1]:2/",
        "metrics at https://[::1]:3/metrics, a page at https://[::1]:3/",
    ]


def test_looks_at_the_log_are_not_more_frequent_than_they_need_be(tmp_path):
    run_dir, clock = stories.write(tmp_path / "run", ()), Hands()
    out = io.StringIO()
    with Live(run_dir, out=out, clock_s=clock) as live:
        clock.now_s += PLAIN_S
        live.poll()
        stories.add(run_dir, [line for line in stories.KILLED_ONCE if line[0] <= 1705])
        clock.now_s += LOOK_S / 2
        live.poll()
        assert "fault" not in out.getvalue()
        clock.now_s += LOOK_S
        live.poll()
        assert "fault 1: kill rank 1" in out.getvalue()


def test_the_present_step_and_loss_come_from_the_slot_of_rank_0(tmp_path):
    fold = folded(stories.GOING)
    with SlotWriter(tmp_path / "0", attempt=1) as slot:
        slot.update(mark=Mark.STEPPING, step=7, loss=3.25)
    with SlotWriter(tmp_path / "old", attempt=0) as slot:
        slot.update(mark=Mark.STEPPING, step=9, loss=9.0)
    shown = status(fold, stories.slot(tmp_path / "0"), Pace())
    assert shown == Status("save_stall", 1, 7, 10, 3.25, None, None, 0.4, "kill rank 1")
    late = status(fold, stories.slot(tmp_path / "old"), Pace())
    assert (late.step, late.loss) == (4, 4.0)


def test_a_run_that_has_ended_says_how():
    assert status(folded(stories.KILLED_ONCE), None, Pace()).phase == "finished"
    assert status(folded(stories.TROUBLED), None, Pace()).phase == "failed"


def test_nothing_is_to_go_when_all_steps_are_done():
    done = Status("finished", 1, 10, 10, None, None, 0.0, None, "")
    assert done.line().plain == "step 10/10 · finished · attempt 1"


def test_speed_is_that_of_the_attempt_that_goes_on():
    pace, fold = Pace(), Fold()
    speeds = []
    for entry in stories.entries(stories.KILLED_ONCE):
        fold.feed(entry)
        pace.observe(fold)
        speeds.append(pace.per_second())
    distinct = list(dict.fromkeys(speeds))
    assert distinct[0] is None
    assert distinct[1] == (2.0, 200.0)  # steps 1 and 2, half a second apart
    assert speeds[-1] == (2.5, 250.0)  # steps 3 and 4 of attempt 1, 0.4 s apart: no restart in it
    assert status(fold, None, pace).remaining_s == pytest.approx(2.4)


def test_on_a_terminal_one_line_moves_and_news_stand_above_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    out, clock = Terminal(), Hands()
    run_dir = stories.write(tmp_path / "run", ())
    with Live(run_dir, out=out, clock_s=clock) as live:
        stories.add(run_dir, stories.KILLED_ONCE)
        clock.now_s += 1
        live.poll()
    assert "fault 1: kill rank 1" in out.getvalue()
    assert "goodput 37.5%" in out.getvalue()
    assert out.getvalue().count("\n") < 12


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_view_that_fails_is_said_once_and_stops_nothing(tmp_path):
    run_dir, out, clock = stories.write(tmp_path / "run", ()), io.StringIO(), Hands()
    with Live(run_dir, out=out, clock_s=clock) as live:
        (run_dir.events / "launcher-0.jsonl").write_text('{"schema": 99}\n')
        for _ in range(3):
            clock.now_s += 1
            live.poll()
    assert out.getvalue().count("no live view any more") == 1
    assert "schema 99 is newer" in out.getvalue()


def test_where_nothing_can_be_written_training_goes_on(tmp_path):
    run_dir, clock = stories.write(tmp_path / "run", stories.KILLED_ONCE), Hands()
    with Live(run_dir, out=Closed(), clock_s=clock) as live:
        clock.now_s += PLAIN_S
        live.poll()
        clock.now_s += PLAIN_S
        live.poll()


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_run_directory_without_a_log_is_shown_as_starting(tmp_path):
    out, clock = io.StringIO(), Hands()
    with Live(RunDir.at(Path(tmp_path)), out=out, clock_s=clock):
        pass
    assert out.getvalue() == "step 0 · startup\n"
