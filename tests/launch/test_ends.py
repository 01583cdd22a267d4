"""How a launcher ends, what it says then, and the exit code that it leaves."""

import json
import os
import shutil
import signal
import socket
import time

import psutil
import pytest

from harness import slots
from harness.events import (
    AttemptStarted,
    Cause,
    DrainRequested,
    FailureDetected,
    Outcome,
    RanksStopped,
    RunFinished,
    RunStarted,
    SaveCommitted,
    StepFinished,
    TrainingResumed,
)
from harness.journal import read
from harness.rundir import RunDir
from harness.slots import Mark
from launch import served
from tests.launch.conftest import Bench
from tests.waiting import until

pytestmark = pytest.mark.processes
SLOW = {"STEP_S": "0.05"}
DONE = """\
import ctypes, os, signal, sys
import harness
job = harness.join()
list(job.steps(2))
if job.rank == 1:
    {deed}
"""


NOBODY = 1 << 22
"""No process has a pid so large."""


def address(host: str, pid: int) -> str:
    labels = {"__scheme__": "http", "instance": f"{host}:/run", "__meta_harness_pid": str(pid)}
    return json.dumps([{"targets": ["127.0.0.1:9"], "labels": labels}])


@pytest.mark.parametrize(
    "left",
    [
        address(socket.gethostname(), os.getpid()),
        address("elsewhere", NOBODY),
        "[]",
        "no JSON",
    ],
)
def test_only_the_address_of_a_dead_exporter_of_this_machine_is_taken_away(tmp_path, left):
    run_dir = RunDir.at(tmp_path)
    served.forget_dead(run_dir)
    run_dir.exporter.write_text(left)
    served.forget_dead(run_dir)
    assert run_dir.exporter.read_text() == left
    run_dir.exporter.write_text(address(socket.gethostname(), NOBODY))
    served.forget_dead(run_dir)
    assert not run_dir.exporter.exists()


def test_a_finished_job_exits_0_and_a_second_launch_finds_nothing_to_do(bench: Bench):
    assert bench.launch("steps.py", "4", ranks=2).wait() == 0
    bench.run_dir.exporter.write_text(address(socket.gethostname(), NOBODY))
    assert bench.launch("steps.py", "4", ranks=2).wait() == 0, bench.printed(2, 0, "err")
    assert not bench.run_dir.exporter.exists(), (
        "who scrapes would miss an exporter that is not meant to be"
    )
    assert bench.attempts() == [1, 2]
    assert [event.run_id for event in bench.events(RunStarted)] == [
        bench.events(RunStarted)[0].run_id
    ] * 2
    assert [event.step for event in bench.events(StepFinished)] == [1, 2, 3, 4]
    assert bench.events(RunFinished) == [RunFinished(Outcome.FINISHED)] * 2


def test_sigterm_saves_and_leaves_with_75_and_the_next_launch_goes_on(bench: Bench):
    run = bench.launch("--grace", "30", "steps.py", "1000", ranks=2, environment=SLOW)
    until(lambda: bench.events(StepFinished), "a first step")
    run.signal(signal.SIGTERM)
    run.signal(signal.SIGTERM)
    assert run.wait() == 75
    assert bench.events(DrainRequested) == [DrainRequested(30.0)]
    step = bench.events(SaveCommitted)[-1].step
    assert bench.events(RunFinished) == [RunFinished(Outcome.DRAINED, f"saved after step {step}")]
    assert bench.launch("steps.py", str(step + 2), ranks=2).wait() == 0
    assert bench.events(TrainingResumed)[-1].step == step
    assert bench.attempts() == [1, 2]
    assert bench.events(FailureDetected) == []


def test_a_grace_that_is_exceeded_is_said_and_nothing_is_left(bench: Bench):
    run = bench.launch("--grace", "0.5", "steps.py", "9", environment={"STEP_S": "1000"})
    bench.told()
    until(lambda: bench.events(TrainingResumed), "a step under way")
    run.signal(signal.SIGTERM)
    assert run.wait(20) == 75
    (finished,) = bench.events(RunFinished)
    assert finished.outcome is Outcome.DRAINED
    assert finished.reason.startswith("grace exceeded: not every rank had saved within 0.5 s")


def test_a_grace_that_ends_after_the_last_save_says_that_all_is_saved(bench: Bench):
    script = bench.write("s.py", DONE.format(deed="print('1', flush=True); signal.pause()"))
    run = bench.launch("--grace", "0.5", script, ranks=2)
    until(lambda: bench.printed(1, 1), "its last step is done")
    until(lambda: _mark(bench, 0) is Mark.FINISHED, "and so is the other's")
    run.signal(signal.SIGTERM)
    assert run.wait(20) == 75
    assert bench.events(RunFinished) == [
        RunFinished(
            Outcome.DRAINED,
            "grace exceeded: all ranks had saved, after step 2, but not all had left within 0.5 s"
            " (--grace)",
        )
    ]


def _mark(bench: Bench, rank: int) -> Mark | None:
    slot = slots.read(bench.run_dir.slot(rank))
    return None if slot is None else slot.mark


def test_sigterm_reaches_a_script_without_the_library(bench: Bench):
    script = bench.write(
        "s.py",
        "import json, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "print(json.dumps({}))\n"
        "time.sleep(1000)\n",
    )
    run = bench.launch(script, ranks=2)
    bench.told(1, 0)
    bench.told(1, 1)
    run.signal(signal.SIGTERM)
    assert run.wait(20) == 75
    assert bench.events(RunFinished) == [RunFinished(Outcome.DRAINED, "the script left on SIGTERM")]


def test_a_rank_that_dies_while_draining_ends_the_run_without_another_attempt(bench: Bench):
    script = bench.write(
        "s.py",
        "import json, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: 1 / 0)\n"
        "print(json.dumps({}))\n"
        "time.sleep(1000)\n",
    )
    run = bench.launch(script)
    bench.told()
    run.signal(signal.SIGTERM)
    assert run.wait(20) == 75
    assert bench.events(RunFinished) == [
        RunFinished(Outcome.DRAINED, "rank 0 ZeroDivisionError: division by zero while draining")
    ]


def test_sigint_stops_the_ranks_and_exits_130(bench: Bench):
    script = bench.write(
        "s.py",
        "import json, time\n"
        "print(json.dumps({}))\n"
        "try:\n"
        "    time.sleep(1000)\n"
        "finally:\n"
        "    print('tidied up')\n",
    )
    run = bench.launch(script)
    bench.told()
    run.signal(signal.SIGINT)
    assert run.wait() == 130
    assert bench.printed().splitlines()[-1] == "tidied up"
    assert bench.events(RunFinished) == [RunFinished(Outcome.INTERRUPTED)]
    assert bench.events(FailureDetected) == []


def test_a_second_sigint_kills_at_once_what_ignores_the_first(bench: Bench):
    script = bench.write(
        "s.py",
        "import json, signal, time\n"
        "signal.signal(signal.SIGINT, lambda *_: print('never'))\n"
        "print(json.dumps({}))\n"
        "while True:\n"
        "    time.sleep(1)\n",
    )
    run = bench.launch(script)
    bench.told()
    run.signal(signal.SIGINT)
    until(lambda: "never" in bench.printed(), "the first one arrives")
    run.signal(signal.SIGINT)
    assert run.wait(2.5) == 130


def test_a_rank_that_exits_0_before_the_last_step_is_a_failure(bench: Bench):
    environment = {"BAD": "1", "DEED": "os._exit(0)"}
    assert bench.launch("steps.py", "5", ranks=2, environment=environment).wait() == 0
    assert bench.events(FailureDetected) == [
        FailureDetected(
            1, Cause.EXIT, "left with exit code 0 before the job was done, after step 2"
        )
    ]
    assert bench.attempts() == [1, 2]


def test_a_crash_in_the_tear_down_after_the_last_step_is_only_a_warning(bench: Bench):
    environment = {"BAD": "1", "DEED": "pass", "LAST": "1"}
    assert bench.launch("steps.py", "5", ranks=2, environment=environment).wait() == 0
    assert bench.events(RunFinished) == [
        RunFinished(
            Outcome.FINISHED,
            "rank 1 ended with SIGSEGV in its tear-down, after the job was done",
        )
    ]


def test_a_rank_that_is_stopped_after_the_last_step_is_told_to_go_on(bench: Bench):
    script = bench.write("s.py", DONE.format(deed="os.kill(os.getpid(), signal.SIGSTOP)"))
    assert bench.launch(script, ranks=2).wait() == 0
    assert bench.events(RunFinished) == [RunFinished(Outcome.FINISHED)]


def test_a_rank_that_never_ends_its_tear_down_after_the_last_step_is_ended(bench: Bench):
    bench.write("brief.py", "from launch import rank\n")
    late = "type('Late', (), {'__del__': lambda _, c=ctypes.PyDLL(None): c.sleep(9999)})()"
    deed = f"import brief; brief.rank.LAST_TEARDOWN_S = 0.3; sys.late = {late}"
    script = bench.write("s.py", DONE.format(deed=deed))
    assert bench.launch("--preload", "brief", script, ranks=2).wait() == 0
    assert bench.events(RunFinished) == [
        RunFinished(
            Outcome.FINISHED,
            "rank 1 ended with exit code 1 in its tear-down, after the job was done",
        )
    ]
    assert "Timeout" in bench.printed(1, 1, "err")


def test_a_launcher_rests_while_its_ranks_leave(bench: Bench):
    run = bench.launch("--grace", "2", "steps.py", "9", environment={"STEP_S": "1000"})
    until(lambda: bench.events(TrainingResumed), "a step under way")
    run.signal(signal.SIGTERM)
    until(lambda: bench.events(DrainRequested), "it heard")
    launcher = psutil.Process(run.pid)
    before, since_s = launcher.cpu_times(), time.monotonic()
    until(lambda: bench.events(RanksStopped), "its grace is over")
    after, lasted_s = launcher.cpu_times(), time.monotonic() - since_s
    assert after.user + after.system - before.user - before.system < lasted_s / 3
    assert run.wait(20) == 75


def test_a_mistake_at_one_step_is_given_up_before_the_budget_is_spent(bench: Bench):
    environment = {"FAIL_AT": "2"}
    run = bench.launch("--max-restarts", "20", "steps.py", "5", environment=environment)
    assert run.wait() == 1
    assert len(bench.events(AttemptStarted)) == 3
    (finished,) = bench.events(RunFinished)
    assert finished.outcome is Outcome.FAILED
    assert "same step, no progress: 3 attempts ended after step 1" in finished.reason
    assert "ArithmeticError: no good" in run.printed


CULPRIT = """
import os, time
rank, pid = os.environ['RANK'], f"pid-{os.environ['RANK']}"
with open(pid, 'w') as file:
    file.write(str(os.getpid()))
if os.environ['HARNESS_ATTEMPT'] == '1':
    while not (os.path.exists('pid-0') and os.path.exists('pid-1')):
        time.sleep(0.001)
    if rank == '0':
        BYSTANDER
    CULPRIT
"""
"""Rank 0 fails because of rank 1, and before it."""
LOST = "raise RuntimeError('Connection closed by peer')"


def test_a_rank_that_is_killed_is_blamed_though_its_peer_was_seen_to_fail_first(bench: Bench):
    wait = "while os.path.exists('/proc/' + open('pid-0').read()): pass"
    script = CULPRIT.replace("BYSTANDER", LOST).replace(
        "CULPRIT", f"{wait}\n    os.kill(os.getpid(), 9)"
    )
    assert bench.launch(bench.write("s.py", script), ranks=2).wait() == 0
    assert bench.events(FailureDetected) == [FailureDetected(1, Cause.SIGNAL, "killed by SIGKILL")]


def test_a_rank_that_still_tidies_up_is_blamed_for_what_it_raised(bench: Bench):
    wait = "while not glob.glob('run/logs/attempt-1/rank-1.error.json'): time.sleep(0.001)"
    late = "atexit.register(time.sleep, 1000)\n    raise ValueError('mine')"
    script = CULPRIT.replace("BYSTANDER", f"import glob\n        {wait}\n        {LOST}")
    script = "import atexit\n" + script.replace("CULPRIT", late)
    assert bench.launch(bench.write("s.py", script), ranks=2).wait(8) == 0
    assert bench.events(FailureDetected) == [
        FailureDetected(1, Cause.EXCEPTION, "ValueError: mine")
    ]


def test_a_script_that_cannot_start_is_tried_once_more(bench: Bench):
    run = bench.launch("--max-restarts", "20", bench.write("s.py", "import numpi\n"))
    assert run.wait() == 1
    assert bench.attempts() == [1, 2]
    assert "it cannot start: 2 attempts ended before a step" in run.printed


def test_ranks_that_sigterm_ends_cost_no_restart_of_the_budget_for_failures(bench: Bench):
    script = bench.write(
        "s.py",
        "import os, signal\n"
        "if int(os.environ['HARNESS_ATTEMPT']) < 3:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "raise SystemExit(os.environ['HARNESS_ATTEMPT'] == '3')\n",
    )
    assert bench.launch("--max-restarts", "1", script).wait() == 0
    assert [event.cause for event in bench.events(FailureDetected)] == [
        Cause.PREEMPTION,
        Cause.PREEMPTION,
        Cause.EXIT,
    ]
    kept = json.loads(bench.run_dir.exits(2).read_text())["decision"]
    assert kept == {
        "restart": True,
        "reason": "restart after preemption 2 of 100 within 3600 s, in 1 s: 2 attempts in a row made"
        " no progress",
        "wait_s": 1.0,
    }


@pytest.mark.parametrize(
    ("number", "status", "ending"),
    [
        (signal.SIGINT, 130, RunFinished(Outcome.INTERRUPTED)),
        (
            signal.SIGTERM,
            75,
            RunFinished(Outcome.DRAINED, "no rank was at work: what was committed before stands"),
        ),
    ],
)
def test_a_wait_before_the_next_attempt_ends_at_once_when_somebody_asks(
    bench: Bench, number: signal.Signals, status: int, ending: RunFinished
):
    script = bench.write("s.py", "import os\nos.kill(os.getpid(), 9)\n")
    flags = ("run", "--run", "run", "--max-restarts", "99", "--no-metrics")
    run = bench.zygote.launch([*flags, script], bench.folder)
    bench.launched.append(run)
    until(lambda: "in 4 s: 4 attempts in a row made no progress" in run.printed, "a long wait")
    run.signal(number)
    assert run.wait(3) == status
    assert bench.events(RunFinished) == [ending]


def test_a_spent_budget_ends_the_run_after_exactly_that_many_restarts(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory
):
    error_file = tmp_path_factory.mktemp("above") / "error.json"
    script = bench.write("s.py", "import os\nraise OSError(os.environ['HARNESS_ATTEMPT'])\n")
    run = bench.launch(
        *("--max-restarts", "2", script),
        environment={"TORCHELASTIC_ERROR_FILE": str(error_file)},
    )
    assert run.wait() == 1
    assert bench.attempts() == [1, 2, 3]
    assert "rank 0 OSError: 3; all 2 restarts within 3600 s are used up" in run.printed
    assert "OSError: 3" in error_file.read_text()


def test_a_peer_that_is_left_waiting_is_noticed_though_it_joined_late(bench: Bench):
    script = bench.write(
        "s.py",
        "import os, sys, harness\n"
        "if os.environ['RANK'] == '1' and os.environ['HARNESS_ATTEMPT'] == '1':\n"
        "    sys.exit(0)\n"
        "job = harness.join()\n"
        "for _ in job.steps(1):\n"
        "    pass\n",
    )
    assert bench.launch(script, ranks=2).wait(40) == 0
    assert bench.events(FailureDetected) == [
        FailureDetected(1, Cause.EXIT, "left with exit code 0 before the job was done")
    ]


def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew_by_itself(bench: Bench):
    assert bench.launch("steps.py", "2").wait() == 0
    shutil.rmtree(bench.run_dir.checkpoints)
    again = bench.launch("steps.py", "3")
    assert again.wait() == 2
    assert "was emptied or replaced since the run has used it" in again.printed
    assert bench.launch("--resume", "fresh", "steps.py", "3").wait() == 0


def test_a_script_that_moves_its_checkpoints_gets_new_numbers_in_each_launch(bench: Bench):
    script = bench.write(
        "moved.py",
        "import sys, torch, harness\n"
        "job = harness.join(checkpoints='elsewhere')\n"
        "job.protect(model=job.ddp(torch.nn.Linear(1, 1)))\n"
        "for step in job.steps(int(sys.argv[1])):\n"
        "    pass\n",
    )
    assert bench.launch(script, "1").wait() == 0
    assert bench.launch(script, "2").wait() == 0
    starts = [entry for entry in read(bench.run_dir) if isinstance(entry.event, AttemptStarted)]
    assert [entry.attempt for entry in starts] == [1, 2]


def test_a_step_that_was_never_saved_is_refused_before_any_rank_starts(bench: Bench):
    run = bench.launch("--resume", "3", "steps.py", "4")
    assert run.wait() == 2
    assert "--resume 3: " in run.printed
    assert "is a new run and has no checkpoints" in run.printed
    assert bench.launch("--save-every-steps", "0", "steps.py", "4").wait() == 0
    again = bench.launch("--resume", "3", "steps.py", "5")
    assert again.wait() == 2
    assert "--resume 3: no checkpoint of that step is in " in again.printed
    assert "there: 4" in again.printed
    assert bench.launch("--resume", "4", "steps.py", "5").wait() == 0
    assert bench.events(TrainingResumed)[-1].step == 4


def test_a_refusal_of_many_lines_ends_the_run_in_one_that_says_where_they_are(bench: Bench):
    script = bench.write("s.py", "raise ValueError('three mistakes:\\none\\ntwo')\n")
    run = bench.launch(script)
    assert run.wait() == 1
    (line,) = [line for line in run.printed.splitlines() if line.startswith("harness run: failed")]
    assert line == (
        "harness run: failed: rank 0 ValueError: three mistakes: …; it cannot start: 2 attempts ended"
        " before a step in this same way: mend that, and launch it again; it said"
        f" why in {bench.run_dir.log(2, 0, 'err')}"
    )


def test_a_rank_whose_log_cannot_be_opened_trains_without_one(bench: Bench):
    script = bench.write(
        "s.py",
        "import os, harness\n"
        "job = harness.join()\n"
        "for step in job.steps(3):\n"
        "    if job.attempt == 1:\n"
        "        for path in ('run/events/rank-0.jsonl', 'run/workers/0.json'):\n"
        "            os.unlink(path)\n"
        "            os.mkdir(path)\n"
        "        os.kill(os.getpid(), 9)\n"
        "print('done')\n",
    )
    run = bench.launch(script)
    assert run.wait() == 0, run.printed
    assert bench.printed(2) == "done\n"
    errors = bench.printed(2, 0, "err")
    assert "harness: rank 0 cannot write its log: " in errors
    assert "harness: rank 0 cannot say who it is: " in errors
