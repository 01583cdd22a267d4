"""SIGTERM to whomever: the whole job saves and leaves, and no step is lost."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from harness import slots
from harness.events import (
    DrainRequested,
    FailureDetected,
    Outcome,
    RunFinished,
    SaveCommitted,
    StepFinished,
    Tier,
    TrainingResumed,
)
from harness.report import report
from harness.report.model import Standing
from harness.slots import Mark
from tests.launch.conftest import SCRIPTS, Bench
from tests.waiting import until
from tests.zygote import Launched

pytestmark = pytest.mark.processes


def _training(bench: Bench) -> Launched:
    """A job of two ranks with two loader workers each, some steps on its way."""
    run = bench.launch("--grace", "30", "workers.py", "10000", ranks=2)
    until(lambda: len(bench.events(StepFinished)) > 2, "some steps")
    return run


def _check_drained(bench: Bench, run: Launched) -> None:
    """It saved the last step that it finished, and the next launch goes on from there."""
    assert run.wait() == 75, run.printed
    step = bench.events(StepFinished)[-1].step
    assert bench.events(SaveCommitted)[-1].step == step
    assert bench.events(RunFinished) == [RunFinished(Outcome.DRAINED, f"saved after step {step}")]
    assert bench.events(FailureDetected) == []
    assert bench.events(DrainRequested) == [DrainRequested(30.0)]
    assert bench.launch("workers.py", str(step + 1), ranks=2).wait() == 0
    assert bench.events(TrainingResumed)[-1].step == step


def test_sigterm_to_one_rank_drains_the_job(bench: Bench):
    run = _training(bench)
    os.kill(bench.pids(1, 2)[1], signal.SIGTERM)
    _check_drained(bench, run)
    assert bench.events(SaveCommitted)[-1].step < 10000


def test_sigterm_to_every_process_of_the_job_drains_it(bench: Bench):
    run = _training(bench)
    everyone = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
    assert len(everyone) >= 1 + 1 + 2 + 4  # launcher, fork server, ranks, workers
    for process in reversed(everyone):
        process.send_signal(signal.SIGTERM)
    _check_drained(bench, run)


def test_sigterm_to_loader_workers_alone_changes_nothing(bench: Bench):
    run = _training(bench)
    workers = [it for pid in bench.pids(1, 2) for it in psutil.Process(pid).children()]
    assert len(workers) == 4
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    seen = bench.events(StepFinished)[-1].step
    until(lambda: bench.events(StepFinished)[-1].step > seen + 3, "training goes on")
    assert all(worker.is_running() for worker in workers)
    assert bench.events(FailureDetected) == []
    run.signal(signal.SIGTERM)
    _check_drained(bench, run)


def _stored(bench: Bench) -> list[int]:
    """The steps that are durable; memory goes with its run."""
    return [event.step for event in bench.events(SaveCommitted) if event.tier is Tier.STORAGE]


def _with_a_saver_that_stands_still(bench: Bench, grace_s: str) -> tuple[Launched, psutil.Process]:
    """A job that has saved once, and from now on saves no more; it is told to leave."""
    flags = ("--grace", grace_s, "--save-every-steps", "3")
    run = bench.launch(*flags, "steps.py", "9999", ranks=2, environment={"STEP_S": "0.05"})
    until(lambda: _stored(bench), "a first save")
    saver = next(
        child
        for child in psutil.Process(run.pid).children()
        if "harness.checkpoint.saver" in child.cmdline()
    )
    saver.suspend()
    run.signal(signal.SIGTERM)
    return run, saver


def test_a_drain_waits_within_its_grace_for_storage_that_is_slow_and_loses_no_step(bench: Bench):
    run, saver = _with_a_saver_that_stands_still(bench, "60")
    until(lambda: bench.events(DrainRequested), "it heard")
    until(lambda: slots_say(bench, Mark.SAVING), "the ranks wait for their last save")
    saver.resume()
    assert run.wait() == 75, run.printed
    step = bench.events(StepFinished)[-1].step
    assert _stored(bench)[-1] == step
    assert bench.events(RunFinished) == [RunFinished(Outcome.DRAINED, f"saved after step {step}")]


def test_a_drain_beyond_its_grace_leaves_the_last_commit_whole_and_says_so(bench: Bench):
    run, _ = _with_a_saver_that_stands_still(bench, "1")
    assert run.wait() == 75, run.printed
    assert report(bench.run_dir).reason == (
        "grace exceeded: not every rank had saved within 1 s (--grace); what was committed before"
        " stands"
    )
    committed = _stored(bench)[-1]
    again = bench.launch("steps.py", str(committed + 1), ranks=2)
    assert again.wait() == 0, again.printed
    assert bench.events(TrainingResumed)[-1].step == committed


def slots_say(bench: Bench, mark: Mark) -> bool:
    """True if rank 0 says that it is at `mark`."""
    slot = slots.read(bench.run_dir.slot(0))
    return slot is not None and slot.mark is mark


def test_under_torchrun_ranks_save_and_leave_on_sigterm_too(bench: Bench):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["--log-dir", str(bench.folder / "logs")]  # else torch leaves one elsewhere
    environment = {"HARNESS_RUN_DIR": str(bench.run_dir.path), "STEP_S": "0.05"}
    with subprocess.Popen(
        [*command, str(SCRIPTS / "steps.py"), "9999"],
        cwd=bench.folder,
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as torchrun:
        try:
            until(lambda: len(bench.events(StepFinished)) > 2, "some steps", 90.0)
        finally:
            torchrun.send_signal(signal.SIGTERM)
        torchrun.wait(60)
    step = bench.events(StepFinished)[-1].step
    assert bench.events(SaveCommitted)[-1].step == step
    assert bench.events(DrainRequested) == [DrainRequested(30.0)]
    assert bench.events(RunFinished) == [RunFinished(Outcome.DRAINED, f"saved after step {step}")]
    assert report(bench.run_dir).standing is Standing.DRAINED


def test_a_signal_after_the_end_does_not_change_how_the_run_ended(bench: Bench):
    flags = ["--run", str(bench.run_dir.path), "--no-metrics", str(SCRIPTS / "steps.py"), "3"]
    command = [sys.executable, "-m", "harness", "run", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        until(lambda: bench.run_dir.event_file("launcher-0").exists(), "it starts")
        until(lambda: bench.events(RunFinished), "it ends")
        while run.poll() is None:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                run.send_signal(number)
            time.sleep(0.002)
        printed = run.communicate(timeout=60)[0]
    assert (run.returncode, b"Traceback" in printed) == (0, False), printed
