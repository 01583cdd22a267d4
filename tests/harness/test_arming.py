import os
import subprocess
import sys

import pytest

from harness import arming, points, settings
from harness.arming import Action, Hit
from harness.events import FaultInjected
from harness.journal import read
from harness.points import Point
from harness.rundir import RunDir

PROCESS = """
import os, sys
from harness import arming, points
arming.arm_from(os.environ, sys.argv[1])
for name in sys.argv[2:]:
    points.reach(points.Point(name))
print("alive")
"""


@pytest.fixture(autouse=True)
def unarmed():
    yield
    points.disarm()


@pytest.fixture
def run_dir(tmp_path) -> RunDir:
    made = RunDir.at(tmp_path / "run")
    made.create()
    record(made, armed=True)
    return made


def record(run_dir: RunDir, armed: bool) -> None:
    settings.write(run_dir.settings, settings.Record("run", ("train.py",), {}, {}, armed))


def process(run_dir: RunDir, asked: str, who: str, *reached: str) -> int:
    """The status of a process that is `who` and reaches those points."""
    environment = {**os.environ, "HARNESS_POINTS": asked, "HARNESS_RUN_DIR": str(run_dir.path)}
    environment["HARNESS_ATTEMPT"] = "3"
    command = [sys.executable, "-c", PROCESS, who, *reached]
    return subprocess.run(command, env=environment, check=False, capture_output=True).returncode


def test_entries_are_read_as_they_are_meant():
    assert arming.parse("rank-1:save.shard:2=kill; saver:save.commit:1=stop;") == (
        Hit("rank-1", Point.SAVE_SHARD, 2, Action.KILL),
        Hit("saver", Point.SAVE_COMMIT, 1, Action.STOP),
    )


def test_all_mistakes_come_in_one_message_with_what_is_known():
    with pytest.raises(ValueError, match="HARNESS_POINTS") as caught:
        arming.parse("rank-x:join:1=kill;rank-0:jion:0=kil;nonsense")
    first, second, third = str(caught.value).splitlines()
    assert first == (
        "HARNESS_POINTS: 'rank-x:join:1=kill': unknown process 'rank-x';"
        " known: fork-server, launcher, rank-N, saver"
    )
    assert "unknown point 'jion'; known: attempt, fork" in second
    assert "'0' is not a count from 1 up" in second
    assert "unknown action 'kil'; known: kill, stop" in second
    assert "must read WHO:POINT:NTH=ACTION" in third


def test_a_process_dies_at_the_point_that_it_reaches_for_the_nth_time(run_dir):
    asked = "rank-1:join:2=kill"
    assert process(run_dir, asked, "rank-1", "join", "group") == 0
    assert process(run_dir, asked, "rank-0", "join", "join") == 0
    assert process(run_dir, asked, "rank-1", "join", "join") == -9


def test_a_hit_is_in_the_log_before_it_acts_and_is_never_repeated(run_dir):
    asked = "rank-1:join:1=kill;rank-1:join:2=kill"
    assert process(run_dir, asked, "rank-1", "join", "join") == -9
    assert process(run_dir, asked, "rank-1", "join") == 0
    assert process(run_dir, asked, "rank-1", "join", "join") == -9
    assert process(run_dir, asked, "rank-1", "join", "join") == 0
    assert [(entry.attempt, entry.event) for entry in read(run_dir)] == [
        (3, FaultInjected("rank-1:join:1", "point.kill", "rank 1")),
        (3, FaultInjected("rank-1:join:2", "point.kill", "rank 1")),
    ]


def test_a_run_that_is_not_armed_is_refused_with_the_way_out(run_dir):
    record(run_dir, armed=False)
    environ = {"HARNESS_POINTS": "rank-0:join:1=kill"}
    with pytest.raises(ValueError, match=r"is not armed.*: unset it, or arm the run by --faults"):
        arming.arm_from(environ, "rank-0", run_dir)
    points.reach(Point.JOIN)


def test_without_the_variable_nothing_is_read_and_nothing_armed(tmp_path):
    arming.arm_from({}, "rank-0", RunDir.at(tmp_path / "missing"))
    points.reach(Point.JOIN)


def test_what_a_forked_process_inherits_is_forgotten(run_dir):
    environ = {"HARNESS_POINTS": "rank-0:join:1=kill"}
    reached = []
    points.arm(Point.GROUP, lambda: reached.append("group"))
    arming.arm_from(environ, "rank-1", run_dir)
    points.reach(Point.GROUP)
    points.reach(Point.JOIN)
    assert reached == []
