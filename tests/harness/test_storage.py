"""The storage of a run is its own once, and is not begun anew behind its back."""

import errno
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from harness.checkpoint.store import StoreError
from harness.rundir import RunDir
from harness.settings import Settings
from harness.storage import checkpoint_store, claim_attempt, probed_store
from tests.harness.checkpoint.world import Run


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    run_dir = RunDir.at(tmp_path / "run")
    run_dir.create()
    return run_dir


def silent(line: str) -> None:
    raise AssertionError(line)


def test_a_storage_that_was_emptied_is_no_new_one(run_dir):
    asked = Settings()
    store = probed_store(run_dir, "run", asked, silent)
    assert store.claim_attempt() == 1
    assert checkpoint_store(run_dir, "run", asked).newest_attempt() == 1

    shutil.rmtree(run_dir.checkpoints)
    for way in (
        lambda: checkpoint_store(run_dir, "run", asked),
        lambda: probed_store(run_dir, "run", asked, silent),
        store.claim_attempt,
    ):
        with pytest.raises(StoreError, match=r"was emptied or replaced .* --resume fresh"):
            way()


def test_whoever_starts_from_nothing_may_have_emptied_the_storage(run_dir):
    probed_store(run_dir, "run", Settings(), silent)
    shutil.rmtree(run_dir.checkpoints)

    fresh = checkpoint_store(run_dir, "run", replace(Settings(), resume="fresh"))
    assert fresh.claim_attempt() == 1
    assert checkpoint_store(run_dir, "run", Settings()).newest_attempt() == 1


def test_another_storage_of_the_same_run_is_made_its_own_too(run_dir, tmp_path):
    probed_store(run_dir, "run", Settings(), silent)

    other = checkpoint_store(run_dir, "run", Settings(checkpoints=str(tmp_path / "other")))
    assert other.owner() == "run"


def test_a_storage_that_lost_the_record_of_its_run_is_known_by_its_commits(run_dir, capfd):
    owned = probed_store(run_dir, "run", Settings(), silent)
    Run(run_dir.checkpoints).commit(10, 20)
    Path(owned.path("step-00000020-1", "commit.json")).write_bytes(b"damaged")
    Path(owned.path("run.json")).unlink()

    store = checkpoint_store(run_dir, "run", Settings())

    assert (store.owner(), len(store.committed())) == ("run", 2)
    assert "had lost the record of its run; it was written again" in capfd.readouterr().err


def test_a_storage_that_another_run_committed_to_is_not_taken_from_it(run_dir):
    owned = probed_store(run_dir, "mine", Settings(), silent)
    Path(owned.path("run.json")).unlink()
    Run(run_dir.checkpoints).commit(10)
    Path(owned.path("run.json")).unlink()

    with pytest.raises(StoreError, match=r"was emptied or replaced .* --resume fresh"):
        checkpoint_store(run_dir, "mine", Settings())


class FullDisk(LocalFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Takes nothing for as long as there is no room."""

    cachable = False
    has_room = False

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "wb" and not self.has_room:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return super()._open(path, mode)

    def make_room(self) -> None:
        assert not self.has_room
        self.has_room = True


def test_an_attempt_for_which_there_is_no_room_gets_its_number_once_there_is(run_dir):
    disk = FullDisk()
    store = replace(probed_store(run_dir, "run", Settings(), silent), files=disk)

    with pytest.raises(OSError, match="No space left on device"):
        claim_attempt(store, 0, lambda: None)
    assert claim_attempt(store, 0, disk.make_room) == 1
    assert claim_attempt(store, 0, disk.make_room) == 2
