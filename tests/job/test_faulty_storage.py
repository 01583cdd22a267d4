"""A whole job on storage that misbehaves by plan: it ends as its twin, and the report says what it met."""

from pathlib import Path

import pytest

from harness.events import FaultInjected, SaveCommitted, SaveFailed, TrainingResumed
from harness.report import summary
from harness.rundir import RunDir
from harness.verify import verify

pytestmark = pytest.mark.processes

PLAN = """
max_faults = 1
[arrival]
instants = [0.3]
[[faults]]
kind = "kill"
[[storage]]
kind = "enospc"
operations = ["write"]
name = "*/state.json"
after_bytes = 0
nth = 2
[[storage]]
kind = "throttle"
operations = ["read", "list"]
probability = 0.05
[[storage]]
kind = "bit_flip"
operations = ["read"]
name = "*/shard-*"
nth = 1
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


def test_a_job_on_storage_that_misbehaves_ends_as_its_twin(job, twin, plan):
    url = f"chaos::file://{job.folder}/checkpoints"
    assert job.run(2, "--faults", str(plan), "--checkpoints", url) == 0
    assert verify(job.path, twin(2)).exact

    events = [entry.event for entry in job.entries()]
    injected = {event.kind for event in events if isinstance(event, FaultInjected)}
    assert {"kill", "store.enospc"} <= injected
    reasons = [event.reason for event in events if isinstance(event, SaveFailed)]
    # The kill may end a save as well.
    assert len([reason for reason in reasons if "no space left" in reason]) == 1
    assert any(isinstance(event, SaveCommitted) for event in events)
    assert len([event for event in events if isinstance(event, TrainingResumed)]) > 1
    assert "faults" in summary(RunDir.at(job.path))


def test_rules_for_storage_that_would_reach_nothing_are_refused(job, plan):
    launched = job.start(2, "--faults", str(plan))
    assert launched.wait() == 2
    assert "give --checkpoints chaos::URL" in launched.printed
    assert not (job.path / "run.toml").exists()


def test_a_run_that_is_not_armed_gets_no_chaos(job):
    launched = job.start(2, "--checkpoints", f"chaos::file://{job.folder}/checkpoints")
    assert launched.wait() == 2
    assert "is not armed: start the run by `harness run --faults PLAN" in launched.printed
    assert not (job.folder / "checkpoints").exists()


def test_points_that_are_armed_in_a_run_that_is_not_are_refused(job):
    launched = job.start(2, HARNESS_POINTS="rank-0:join:1=kill")
    assert launched.wait() == 2
    assert "unset it, or arm the run by --faults PLAN" in launched.printed
