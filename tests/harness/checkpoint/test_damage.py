"""Every file of a checkpoint, damaged in every way: found before use, and walked past."""

import shutil
from pathlib import Path

import pytest

from harness.checkpoint.audit import is_sound
from harness.checkpoint.manifest import Place
from harness.events import CheckpointRejected, Rejection
from tests.harness.checkpoint.world import Run

FILES = [
    "shard-00000-of-00002.safetensors",
    "shard-00001-of-00002.safetensors",
    "state.json",
    "manifest.json",
    "commit.json",
]


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("committed") / "checkpoints")
    run.commit(10, 20)
    return run.root


@pytest.fixture
def run(committed, tmp_path):
    shutil.copytree(committed, tmp_path / "checkpoints")
    return Run(tmp_path / "checkpoints")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def flip_first(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def zero_the_end(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-16] + bytes(16))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def swap(path: Path) -> None:
    path.write_bytes((path.parent.parent / "step-00000010-1" / path.name).read_bytes())


def remove(path: Path) -> None:
    path.unlink()


EXPECTED = {
    flip: Rejection.CHECKSUM,
    flip_first: Rejection.CHECKSUM,
    zero_the_end: Rejection.CHECKSUM,
    swap: Rejection.CHECKSUM,
    cut: Rejection.TORN,
    lengthen: Rejection.TORN,
    empty: Rejection.TORN,
    remove: Rejection.MISSING,
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", EXPECTED)
def test_damage_is_found_and_walked_past(run, name, damage):
    damage(run.directory(20) / name)

    assert [found.step for found in run.choose()] == [10, 10]

    rejected = [(r.step, r.rejection) for r in run.log.of(CheckpointRejected)]
    if damage is remove and name == "commit.json":
        assert rejected == []  # without its commit it is no checkpoint
        return
    if name != "commit.json":
        assert rejected == [(20, EXPECTED[damage])]
    else:  # a commit that is another's, or no JSON any more, is torn whatever its size
        assert rejected in ([(20, Rejection.TORN)], [(20, Rejection.CHECKSUM)])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [flip, cut, lengthen, empty, swap, remove])
def test_retention_sees_what_it_can_without_reading_tensors(run, name, damage):
    damage(run.directory(20) / name)
    seen = not is_sound(run.store(), Place(20, 1))

    by_size_alone = name.startswith("shard") or name == "state.json"
    assert seen or (by_size_alone and damage in (flip, swap))


def test_a_whole_checkpoint_under_another_name_is_not_one(run):
    run.directory(20).rename(run.root / "step-00000030-1")

    assert [found.step for found in run.choose()] == [10, 10]
    ((step, rejection),) = [(r.step, r.rejection) for r in run.log.of(CheckpointRejected)]
    assert (step, rejection) == (30, Rejection.TORN)


def test_files_that_do_not_belong_there_are_no_concern(run):
    (run.directory(20) / "notes.txt").write_text("mine")

    assert [found.step for found in run.choose()] == [20, 20]
