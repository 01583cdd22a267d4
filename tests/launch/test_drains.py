"""SIGTERM to whomever: the whole job saves and leaves, and no step is lost."""

import os
import signal

import psutil
import pytest

from harness.events import (
    DrainRequested,
    FailureDetected,
    Outcome,
    RunFinished,
    SaveCommitted,
    StepFinished,
    TrainingResumed,
)
from tests.launch.conftest import Bench, until
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
