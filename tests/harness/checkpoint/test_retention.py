from collections.abc import Mapping

import pytest
import torch
from fsspec.implementations.local import LocalFileSystem

from harness import points
from harness.checkpoint.local import LocalObjects
from harness.checkpoint.manifest import COMMIT, Place
from harness.checkpoint.objects import Entry
from harness.checkpoint.retention import retain, sweep
from harness.checkpoint.upkeep import sweep_own
from harness.events import CheckpointDeleted, SaveCommitted, SaveFailed
from harness.points import Point
from tests.harness.checkpoint.world import Rank, Run, SlowDisk


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "checkpoints")


def damage(run: Run, step: int) -> None:
    path = run.directory(step) / "state.json"
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(("keep", "left"), [(1, [10000]), (2, [9900, 10000])])
def test_the_newest_are_kept_and_every_deletion_is_told(run, keep, left):
    steps = [9700, 9800, 9900, 10000]
    run.commit(*steps, world_size=1, keep=keep)

    assert run.steps() == left
    deleted = [(event.step, event.saved_by) for event in run.log.of(CheckpointDeleted)]
    assert deleted == [(step, 1) for step in steps if step not in left]
    assert sorted(path.name for path in run.root.iterdir()) == [
        "attempts",
        "run.json",
        *(f"step-{step:08d}-1" for step in left),
    ]


def test_nothing_is_deleted_before_the_newer_one_is_committed(run):
    class Watched(LocalFileSystem):  # type: ignore[misc]
        cachable = False

        def rm_file(self, path):
            if path.endswith(COMMIT):
                remaining.append(len(run.steps()))
            super().rm_file(path)

    remaining: list[int] = []
    run.commit(10, 20, 30, world_size=1, keep=1, files={0: Watched()})

    assert remaining == [2, 2]  # with the one that goes: there is always another


def test_while_a_save_is_under_way_the_old_one_stays_and_loads(run):
    run.commit(10, world_size=1, keep=1)
    disk = SlowDisk()

    def body(rank: Rank) -> tuple[list[int], bool]:
        rank.at(20, force=True)
        assert disk.reached.wait(20)
        before = run.steps()
        disk.go_on.set()
        return before, rank.saver.finish(20)

    assert run.attempt(body, 1, files={0: disk}, keep=1) == [([10], True)]
    assert run.steps() == [20]


def test_a_failed_save_deletes_nothing(run):
    def fail() -> None:
        raise OSError("broken")

    def body(rank: Rank) -> bool:
        rank.save(10)
        points.arm(Point.SAVE_COMMIT, fail)
        try:
            return rank.save(20)
        finally:
            points.disarm()

    assert run.attempt(body, 1, keep=1) == [False]
    assert run.steps() == [10]
    assert run.log.of(CheckpointDeleted) == []


def test_a_deletion_that_fails_leaves_the_save_committed(run, capfd):
    class Stuck(LocalFileSystem):  # type: ignore[misc]
        cachable = False

        def rm_file(self, path):
            raise PermissionError(13, "Permission denied", path)

    run.commit(10, 20, world_size=1, keep=1, files={0: Stuck()})

    assert run.steps() == [10, 20]
    assert len(run.log.of(SaveCommitted)) == 2
    assert run.log.of(SaveFailed) == []
    assert "harness: old checkpoints cannot be deleted: PermissionError" in capfd.readouterr().err


def test_the_only_good_one_outlives_any_number_of_damaged_ones(run):
    run.commit(10, 20, 30, world_size=1, keep=9)
    damage(run, 20)
    damage(run, 30)

    assert list(retain(run.store(), 1)) == []
    assert run.steps() == [10, 20, 30]
    run.commit(40, world_size=1, keep=1, resume="10")
    assert run.steps() == [40]


def test_what_a_zombie_committed_goes_once_the_newer_attempt_has_its_own(run):
    run.commit(10, 20, world_size=1)
    run.commit(resume="10", world_size=1)  # departs from 10; 20 never happened
    assert run.steps() == [10, 20]

    run.commit(15, world_size=1)

    assert run.steps() == [10, 15]
    assert [event.step for event in run.log.of(CheckpointDeleted)] == [20]


def test_leftovers_go_when_a_later_attempt_starts_and_its_own_once_it_has_committed_more(run):
    run.commit(10, world_size=1)
    store = run.store()
    for place in (Place(20, 1), Place(30, 2), Place(40, 3)):
        store.write(f"{place.name}/shard", [b"half of it"])
    sweep(store, 2)

    assert store.places() == [Place(10, 1), Place(30, 2), Place(40, 3)]

    run.commit(15, world_size=1)  # attempt 2
    run.attempt(lambda rank: rank.save(50), 1)  # attempt 3
    assert [place.step for place in store.places()] == [10, 15, 50]


def test_deletion_is_a_point_that_faults_can_hang_on(run):
    def body(rank: Rank) -> bool:
        rank.save(10)
        points.arm(Point.RETENTION, lambda: seen.append(run.steps()))
        try:
            return rank.save(20)
        finally:
            points.disarm()

    seen: list[list[int]] = []
    assert run.attempt(body, 1, keep=1) == [True]
    assert seen[0] == [10, 20]
    assert set(map(tuple, seen[1:])) == {(20,)}  # the commit goes first
    assert len(seen) == 5  # before, and after each of commit, manifest, state and shard


def test_retention_leaves_a_state_that_loads(run):
    run.commit(*range(1, 9), world_size=2, keep=2)

    assert run.steps() == [7, 8]
    for found in run.choose():
        assert torch.equal(found.shared["model"]["weight"], torch.full((8, 4), 8.0))


def test_what_a_dead_saver_of_this_attempt_left_is_found_in_one_listing(run, monkeypatch):
    listings: list[str] = []
    listing = LocalObjects.listing

    def counted(objects: LocalObjects, under: str = "") -> Mapping[str, Entry]:
        listings.append(under)
        return listing(objects, under)

    run.commit(10, 20, world_size=1)
    store = run.store()
    with monkeypatch.context() as patched:
        patched.setattr(LocalObjects, "listing", counted)
        sweep_own(store, Place(30, 1))
    assert listings == [""]

    for place in (Place(15, 1), Place(30, 1), Place(15, 2)):
        store.write(f"{place.name}/shard", [b"half of it"])
    sweep_own(store, Place(30, 1))
    assert store.places() == [Place(10, 1), Place(15, 2), Place(20, 1), Place(30, 1)]
