"""A committed checkpoint that cannot be read for a while: an outage costs an attempt, and no step."""

import errno
from functools import partial
from typing import Any

import pytest

from harness.checkpoint import vault
from harness.checkpoint.patience import Limits
from harness.checkpoint.refusals import OutageError
from harness.checkpoint.store import Store
from harness.events import CheckpointRejected, Rejection
from tests.harness.checkpoint.world import FullDisk, Run


class Down(FullDisk):
    """Fails to read what has `part` in its path, by `error`, for the first `times`."""

    def __init__(self, part: str, error: OSError, times: int = 10**9) -> None:
        super().__init__(10**9)
        self.part = part
        self.error = error
        self.times = times

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "rb" and self.part in path and self.times > 0:
            self.times -= 1
            raise self.error
        return super()._open(path, mode)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Its storage is asked once: that it is asked again is proved elsewhere, and takes seconds."""
    run = Run(tmp_path / "checkpoints")
    run.commit(10, 20)
    monkeypatch.setattr(vault, "Limits", partial(Limits, tries=1))
    return run


OUTAGES = [
    TimeoutError(errno.ETIMEDOUT, "the storage did not answer"),
    ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    OSError(errno.EBUSY, "503 SlowDown"),
    OSError(errno.EREMOTEIO, "500 InternalError"),
    PermissionError(errno.EACCES, "the token has expired"),
]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("error", OUTAGES, ids=str)
def test_an_outage_costs_no_step(run, error, rank):
    part = "step-00000020"
    said = rf"step-00000020-1 in .* cannot be read now \(rank {rank}: .*{error.strerror}.*no damage"
    with pytest.raises(OutageError, match=said):
        run.attempt(lambda rank: rank.found, files={rank: Down(part, error)})

    assert run.log.of(CheckpointRejected) == []
    assert [found.step for found in run.choose()] == [20, 20]  # it is over


def test_a_disk_that_cannot_read_one_file_is_walked_past_while_it_reads_others(run):
    broken = OSError(errno.EIO, "Input/output error")
    files = {rank: Down("step-00000020-1/shard-00001", broken) for rank in range(2)}

    assert [f.step for f in run.attempt(lambda rank: rank.found, files=files)] == [10, 10]
    assert [r.rejection for r in run.log.of(CheckpointRejected)] == [Rejection.UNREADABLE]


def test_a_disk_that_reads_nothing_is_an_outage(run):
    broken = OSError(errno.EIO, "Input/output error")

    class Gone(Down):
        """Once it has failed for the first time, it is gone."""

        def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
            if self.part in path and mode == "rb":
                self.part = ""
            return super()._open(path, mode)

    gone = Gone("step-00000020-1/state.json", broken)
    with pytest.raises(OutageError, match=r"step-00000020-1 in .* cannot be read now"):
        run.attempt(lambda rank: rank.found, 1, files={0: gone})
    assert [found.step for found in run.choose()] == [20, 20]


def test_a_file_that_can_be_read_the_second_time_is_read(run):
    broken = OSError(errno.EIO, "Input/output error")
    files = {1: Down("step-00000020-1/shard", broken, times=1)}

    assert [f.step for f in run.attempt(lambda rank: rank.found, files=files)] == [20, 20]
    assert run.log.of(CheckpointRejected) == []


def test_the_newest_that_was_noted_is_not_forgotten_in_an_outage(run, monkeypatch):
    monkeypatch.setattr(Store, "committed", lambda store: [])  # a listing of some time ago

    with pytest.raises(OutageError, match=r"cannot be used now: .*did not answer"):
        run.attempt(lambda rank: rank.found, 1, files={0: Down("newest.json", OUTAGES[0])})
