"""Whole jobs whose stored states are damaged, or moved to another run by hand."""

from pathlib import Path

import pytest

from harness.cli import main
from harness.events import CheckpointRejected, Rejection, StateDigested, TrainingResumed
from harness.journal import read
from harness.rundir import RunDir
from harness.verify import verify
from tests.job.conftest import SCRIPT, STEPS, Job

pytestmark = pytest.mark.processes


def stopped(job: Job) -> list[int]:
    """A job of two ranks that died after some saves; their steps."""
    assert job.run(2, "--max-restarts", "0", KILL="1:0:19") == 1
    return sorted(int(path.parent.name.split("-")[1]) for path in commits(job))


def commits(job: Job) -> list[Path]:
    return [*RunDir.at(job.path).checkpoints.glob("step-*/commit.json")]


def flip(job: Job, step: int) -> None:
    """One bit of the first shard of a step."""
    (directory,) = RunDir.at(job.path).checkpoints.glob(f"step-{step:08d}-*")
    path = directory / "shard-00000-of-00002.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def resumed(path: Path) -> list[int]:
    return [e.event.step for e in read(RunDir.at(path)) if isinstance(e.event, TrainingResumed)]


def test_a_job_walks_back_over_what_is_damaged_and_ends_as_one_that_never_stopped(job, twin):
    *_, older, newest = stopped(job)
    flip(job, newest)

    assert job.run(2) == 0

    assert resumed(job.path) == [0, older]
    (rejected,) = [e.event for e in job.entries() if isinstance(e.event, CheckpointRejected)]
    assert (rejected.step, rejected.rejection) == (newest, Rejection.CHECKSUM)
    assert verify(job.path, twin(2)).exact


def test_a_damaged_step_that_is_asked_for_ends_the_launch_with_the_good_ones(job):
    *good, newest = stopped(job)
    flip(job, newest)

    assert job.run(2, "--max-restarts", "0", "--resume", str(newest)) == 1

    logs = RunDir.at(job.path).logs.glob("attempt-2/rank-*.err")
    told = "".join(path.read_text() for path in logs)
    assert f"the checkpoint of step {newest} that was asked for is damaged" in told
    assert f"good ones: {', '.join(map(str, good))}" in told


@pytest.mark.parametrize("name", ["state.safetensors", "state.pt", "state"])
def test_a_job_that_moved_to_another_run_by_hand_ends_as_one_that_never_stopped(
    job, twin, tmp_path, name, capsys
):
    newest = stopped(job)[-1]
    moved, at = job.beside("moved"), tmp_path / name
    export = ["checkpoint", "export", str(job.path), str(newest), "--to", str(at)]
    place = ["checkpoint", "import", str(at), "--to", str(moved.path), "--script", str(SCRIPT)]
    assert (main(export), main(place)) == (0, 0), capsys.readouterr().err

    assert moved.run(2) == 0

    assert resumed(moved.path) == [newest]
    assert digests(moved.path, newest) == digests(twin(2), newest)


def digests(path: Path, above: int) -> dict[tuple[int, str], dict[str, str]]:
    """Of the whole state after every step above, on each rank."""
    found = {
        (entry.event.step, entry.writer): dict(entry.event.components)
        for entry in read(RunDir.at(path))
        if isinstance(entry.event, StateDigested) and entry.event.step > above
    }
    assert (STEPS, "rank-1") in found
    return found
