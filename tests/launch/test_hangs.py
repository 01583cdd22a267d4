"""A rank that hangs is found, named, and costs one attempt."""

import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from harness.events import (
    Cause,
    FailureDetected,
    HelperRestarted,
    Outcome,
    RunFinished,
    StacksDumped,
    StepFinished,
)
from harness.journal import read
from tests.launch.conftest import Bench

pytestmark = pytest.mark.processes
LIMITS = ("--startup-limit", "6", "--restore-limit", "6")
SLACK_S = 15.0
"""What a busy machine may add to a limit; how fast an idle one is, benchmarks/noticing.py tells."""
PY_SPY = shutil.which("py-spy") or Path(sys.executable).with_name("py-spy").exists()


def _run(bench: Bench, hang: str) -> FailureDetected:
    """The one failure of a job in which a rank hangs, and which finishes nevertheless."""
    run = bench.launch(*LIMITS, "hanging.py", ranks=2, environment={"HANG": hang})
    assert run.wait(120) == 0, run.printed
    assert bench.events(RunFinished) == [RunFinished(Outcome.FINISHED)]
    assert bench.events(HelperRestarted) == []
    (failure,) = bench.events(FailureDetected)
    assert isinstance(failure, FailureDetected)
    assert failure.cause is Cause.HANG
    return failure


def _limit_s(failure: FailureDetected) -> float:
    found = re.search(r"\(limit: ([\d.e+]+) s, ", failure.reason)
    assert found, failure.reason
    return float(found[1])


def _silent_s(bench: Bench) -> float:
    """From the last sign of life in the log to the alarm."""
    entries = [entry for entry in read(bench.run_dir) if entry.attempt == 1]
    (alarm_ns,) = [it.at_ns for it in entries if isinstance(it.event, FailureDetected)]
    last_ns = max(it.at_ns for it in entries if isinstance(it.event, StepFinished))
    return (alarm_ns - last_ns) / 1e9


@pytest.mark.parametrize(
    ("hang", "doing"),
    [
        ("1:forward:stop", "in step 12, in forward or backward"),
        ("0:forward:spin", "in step 12, in forward or backward"),
        ("1:forward:gil", "in step 12, in forward or backward"),
        ("1:loader:spin", "in step 12, in the data loader"),
        ("0:optimizer:spin", "in step 12, in the optimizer"),
        ("1:collective:spin", "in step 12, before its first batch or gradient"),
        ("0:collective:stop", "in step 12, before its first batch or gradient"),
    ],
)
def test_a_hang_in_a_step_is_found_within_its_limit_and_the_right_rank_named(
    bench: Bench, hang: str, doing: str
):
    failure = _run(bench, hang)
    assert failure.rank == int(hang[0]), failure.reason
    assert doing in failure.reason
    assert failure.reason.startswith("is stopped: ") == hang.endswith("stop")
    assert _silent_s(bench) < _limit_s(failure) + SLACK_S
    assert bench.events(StacksDumped) == [StacksDumped(str(bench.run_dir.incident(1)))]
    assert '"cause": "hang"' in bench.run_dir.exits(1).read_text()


@pytest.mark.parametrize(
    ("hang", "doing", "limit"),
    [
        ("1:join:spin", "while joining", "6 s, --startup-limit"),
        ("0:restore:spin", "while restoring", "6 s, --restore-limit"),
        ("1:group:spin", "while the process group formed", "6 s, --startup-limit"),
        ("1:setup:stop", "between join and the first step", "6 s, --startup-limit"),
    ],
)
def test_a_hang_before_the_first_step_is_found_within_the_stated_limit(
    bench: Bench, hang: str, doing: str, limit: str
):
    failure = _run(bench, hang)
    assert failure.rank == int(hang[0]), failure.reason
    assert f"{doing} (limit: {limit})" in failure.reason


def test_a_rank_that_leaves_out_a_collective_leaves_nobody_to_blame_and_the_job_goes_on(
    bench: Bench,
):
    failure = _run(bench, "1:skip:spin")
    assert failure.rank is None
    assert failure.reason.startswith("rank 0 made no progress for ")
    assert failure.reason.endswith("; no rank stands out")


@pytest.mark.skipif(not PY_SPY, reason="py-spy is not installed")
def test_the_stacks_of_a_rank_that_answers_nobody_are_read_by_py_spy(bench: Bench):
    _run(bench, "1:forward:stop")
    assert "hang (hanging.py:" in bench.run_dir.stacks(1, 1).read_text()
    assert "backward" in bench.run_dir.stacks(1, 0).read_text()
    # It counts as noticed when rank 0 was asked, and not when rank 1 had been waited for.
    (alarm_ns,) = [it.at_ns for it in read(bench.run_dir) if isinstance(it.event, FailureDetected)]
    assert alarm_ns < bench.run_dir.stacks(1, 0).stat().st_mtime_ns + 250_000_000


def test_a_script_without_the_library_is_not_watched_and_that_is_said_once(bench: Bench):
    script = bench.write("plain.py", "import time\ntime.sleep(4)\n")
    run = bench.zygote.launch(
        ["run", "--run", "run", "--no-metrics", "--startup-limit", "1", script], bench.folder
    )
    assert run.wait() == 0
    said = [line for line in run.printed.splitlines() if "hangs go unnoticed" in line]
    assert said == ["no rank has called harness.join after 1 s: hangs go unnoticed"]
    assert bench.events(FailureDetected) == []


def test_a_launcher_that_slept_takes_no_rank_for_hung(bench: Bench):
    run = bench.launch("steps.py", "150", ranks=2, environment={"STEP_S": "0.05"})
    pids = bench.pids(1, 2)
    for pid in (run.pid, *pids):  # as a laptop does: everything sleeps
        os.kill(pid, signal.SIGSTOP)
    time.sleep(4.5)  # longer than the limit; nothing happens that could be waited for
    for pid in (*pids, run.pid):
        os.kill(pid, signal.SIGCONT)
    assert run.wait(120) == 0
    assert bench.events(FailureDetected) == []


def test_nothing_is_watched_where_that_was_asked_for(bench: Bench):
    environment = {"BAD": "1", "DEED": "time.sleep(4)"}
    run = bench.launch("--hang-after", "0", "steps.py", "9", ranks=2, environment=environment)
    assert run.wait() == 0
    assert bench.events(FailureDetected) == []
