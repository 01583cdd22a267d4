"""A run that ends too early leaves in the storage what it had in memory."""

import signal

import pytest

from harness.events import Outcome, RunFinished, SaveCommitted, StepFinished, Tier, TrainingResumed
from tests.launch.conftest import Bench
from tests.waiting import until

pytestmark = pytest.mark.processes

MEMORY_ALONE = ("--memory-every", "1 steps", "--storage-every", "1000 steps", "--max-restarts", "0")


def stored(bench: Bench) -> list[int]:
    return [it.step for it in bench.events(SaveCommitted) if it.tier is Tier.STORAGE]


def test_a_run_that_fails_loses_no_more_than_a_restart_would_have_cost(bench: Bench):
    failing = {"FAIL_AT": "8", "STEP_S": "0.1"}
    failed = bench.launch(*MEMORY_ALONE, "steps.py", "12", ranks=2, environment=failing)
    assert failed.wait() == 1
    assert [it.outcome for it in bench.events(RunFinished)] == [Outcome.FAILED]
    (step,) = stored(bench)
    assert step in (6, 7), "the copy of the last step may not have been whole"

    assert bench.launch("steps.py", "12", ranks=2).wait() == 0
    resumed = bench.events(TrainingResumed)[-1]
    assert (resumed.step, resumed.tier) == (step, Tier.STORAGE)


def test_a_launch_with_a_mistake_in_it_costs_nothing_that_lingered_for_it(bench: Bench):
    slowly = {"STEP_S": "0.1"}
    killed = bench.launch(*MEMORY_ALONE, "steps.py", "1000", ranks=2, environment=slowly)
    until(lambda: len(bench.events(StepFinished)) > 8, "some steps")
    killed.signal(signal.SIGKILL)
    killed.wait()
    done = bench.events(StepFinished)[-1].step

    mistaken = bench.launch(*MEMORY_ALONE, "steps.py", "3", ranks=2)
    assert mistaken.wait() == 1, "it is past that step already"
    # Its saver has what lingered, and saves that; or it had not come so far, and that lingers on.
    assert bench.launch(*MEMORY_ALONE, "steps.py", str(done + 2), ranks=2).wait() == 0
    assert bench.events(TrainingResumed)[-1].step >= done - 1
    assert bench.zygote.launch(["sweep", "run"], bench.folder).wait() == 0
