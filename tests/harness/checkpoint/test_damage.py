"""Every file of a checkpoint, damaged in every way: found before use, walked past, and set aside."""

import errno
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import xxhash

from harness.checkpoint.audit import is_sound
from harness.checkpoint.manifest import Place
from harness.checkpoint.reading import Reader
from harness.checkpoint.refusals import RestoreError
from harness.checkpoint.store import Store
from harness.events import CheckpointRejected, Rejection
from tests.harness.checkpoint.world import FullDisk, Run

FILES = [
    "shard-00000-of-00002.safetensors",
    "shard-00001-of-00002.safetensors",
    "state.json",
    "manifest.json",
    "commit.json",
]


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """Every file of a run that committed steps 10 and 20, by name."""
    run = Run(tmp_path_factory.mktemp("committed") / "checkpoints")
    run.commit(10, 20)
    store = run.store()
    return {name: store.read(name) for name in store.inventory()}


@pytest.fixture
def run(committed, tmp_path):
    return filled(Run(tmp_path / "checkpoints"), committed)


def filled(run: Run, content: Mapping[str, bytes]) -> Run:
    for name, data in content.items():
        put(run, name, data)
    return run


def put(run: Run, name: str, data: bytes | None) -> None:
    """Make `data` the content of a file, whatever was there; None is no file."""
    store = run.store()
    path = store.path(name)
    if data is None:
        store.files.rm_file(path)
        return
    store.files.makedirs(path.rpartition("/")[0], exist_ok=True)
    store.files.pipe_file(path, data)


NEWEST, OLDER = "step-00000020-1", "step-00000010-1"

Damage = Callable[[bytes, bytes], bytes | None]
"""What becomes of a file, given it and the one of its name in the step before; None is no file."""


def flip(position: float) -> Damage:
    """One bit, at a part of the file's length."""

    def damage(data: bytes, _: bytes) -> bytes:
        changed = bytearray(data)
        changed[min(int(position * len(data)), len(data) - 1)] ^= 1 << int(position * 7)
        return bytes(changed)

    return damage


DAMAGES: dict[str, tuple[Damage, Rejection]] = {
    "its first bit flipped": (flip(0), Rejection.CHECKSUM),
    "a bit in a quarter flipped": (flip(0.25), Rejection.CHECKSUM),
    "a bit in the middle flipped": (flip(0.5), Rejection.CHECKSUM),
    "a bit in three quarters flipped": (flip(0.75), Rejection.CHECKSUM),
    "its last bit flipped": (flip(1), Rejection.CHECKSUM),
    "its end zeroed": (lambda data, _: data[:-16] + bytes(16), Rejection.CHECKSUM),
    "another step's content": (lambda _, other: other, Rejection.CHECKSUM),
    "a byte cut": (lambda data, _: data[:-1], Rejection.TORN),
    "a byte more": (lambda data, _: data + b"\0", Rejection.TORN),
    "no content": (lambda *_: b"", Rejection.TORN),
    "no file": (lambda *_: None, Rejection.MISSING),
}


def damage(run: Run, name: str, kind: Damage) -> None:
    store = run.store()
    put(run, f"{NEWEST}/{name}", kind(*(store.read(f"{step}/{name}") for step in (NEWEST, OLDER))))


def counted(monkeypatch, owner: type, name: str) -> list[tuple[Any, ...]]:
    """The arguments with which a method is called from now on."""
    calls: list[tuple[Any, ...]] = []
    method = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        calls.append(arguments)
        return method(*arguments)

    monkeypatch.setattr(owner, name, call)
    return calls


MATRIX = [("file", kind) for kind in DAMAGES] + [
    ("s3", "a bit in the middle flipped"),
    ("s3", "another step's content"),
    ("s3", "a byte cut"),
    ("s3", "no content"),
    ("s3", "no file"),
]
"""Where, and what is done to a file."""


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("where", "kind"), MATRIX)
def test_damage_is_found_walked_past_and_set_aside(
    committed, request, tmp_path, name, where, kind, capfd, monkeypatch
):
    url = request.getfixturevalue("s3_url") if where == "s3" else ""
    run = filled(Run(tmp_path / "checkpoints", url=url), committed)
    change, expected = DAMAGES[kind]
    damage(run, name, change)
    used = counted(monkeypatch, Reader, "build")

    assert [found.step for found in run.choose()] == [10, 10]

    assert len(used) == 2  # of the older one alone is a tensor made
    rejected = [(r.step, r.rejection) for r in run.log.of(CheckpointRejected)]
    store, record = run.store(), f"{NEWEST}/rejected.json"
    if kind == "no file" and name == "commit.json":
        assert (rejected, store.size(record)) == ([], None)  # without its commit it is none
        return
    if name != "commit.json":
        assert rejected == [(20, expected)]
    else:  # a commit that is another's, or no JSON any more, is torn whatever its size
        assert rejected in ([(20, Rejection.TORN)], [(20, Rejection.CHECKSUM)])
    said = json.loads(store.read(record))
    assert (said["schema"], said["run_id"], said["attempt"]) == (1, "run", 2)
    assert (said["rejection"], name in said["reason"]) == (rejected[0][1], True)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("harness: walked past step-00000020-1 (")
    assert line.endswith("; set aside")


@pytest.mark.parametrize("name", FILES[:4])
def test_what_was_set_aside_is_not_read_again(run, name, capfd, monkeypatch):
    damage(run, name, flip(0.5))
    attempts = run.root / "attempts"
    assert run.choose()[0].step == 10
    (attempts / "00002.json").unlink()  # as if that attempt had died before it could choose
    capfd.readouterr()
    read = counted(monkeypatch, Store, "pour")

    assert [found.step for found in run.choose()] == [10, 10]

    assert [name for (_, name, *_) in read if name.startswith("step-00000020")] == []
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("harness: walked past step-00000020-1, set aside (checksum): ")
    assert len(run.log.of(CheckpointRejected)) == 1  # it is counted when it is found


def test_a_step_that_was_set_aside_is_not_resumed_from_though_it_is_asked_for(run, monkeypatch):
    damage(run, "state.json", flip(0.5))
    with pytest.raises(RestoreError, match=r"step 20 .* is damaged .*good ones: 10"):
        run.choose(resume="20")
    read = counted(monkeypatch, Store, "pour")

    with pytest.raises(RestoreError, match=r"step 20 .* is damaged .*good ones: 10"):
        run.choose(resume="20")

    assert [name for (_, name, *_) in read if name.startswith("step-00000020")] == []
    assert len(run.log.of(CheckpointRejected)) == 1


def test_a_run_starts_though_it_cannot_write_down_what_is_damaged(run, capfd, monkeypatch):
    damage(run, "state.json", flip(0.5))
    create = Store.create

    def refuse(store: Store, name: str, data: bytes) -> bool:
        if name.endswith("rejected.json"):
            raise PermissionError(13, "Permission denied", name)
        return create(store, name, data)

    monkeypatch.setattr(Store, "create", refuse)
    assert [found.step for found in run.choose()] == [10, 10]
    (line,) = capfd.readouterr().err.splitlines()
    assert "; that cannot be written down: PermissionError: " in line


def test_what_may_pass_is_not_set_aside(run):
    class Failing(FullDisk):
        def _open(self, path, mode="rb", **options):
            if "step-00000020" in path and mode == "rb":
                raise OSError(errno.EIO, "Input/output error", path)
            return super()._open(path, mode)

    found = run.attempt(lambda rank: rank.found, files={1: Failing(10**9)})

    assert [f.step for f in found] == [10, 10]
    assert not (run.directory(20) / "rejected.json").exists()


def test_what_a_newer_version_saved_is_refused_and_not_walked_past(run):
    commit = run.directory(20) / "commit.json"
    fields = json.loads(commit.read_bytes()) | {"schema": 2}
    del fields["checksum"]
    checksum = xxhash.xxh3_128_hexdigest(
        json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    )
    commit.write_text(json.dumps({**fields, "checksum": checksum}))

    with pytest.raises(RestoreError, match=r"newer version .*schema 2; this"):
        run.choose()
    assert not commit.with_name("rejected.json").exists()
    assert [found.step for found in run.choose(resume="10")] == [10, 10]


def test_a_file_that_one_rank_alone_misses_is_no_damage(run):
    class Lagging(FullDisk):
        def _open(self, path, mode="rb", **options):
            if "step-00000020" in path and mode == "rb":
                raise FileNotFoundError(2, "No such file or directory", path)
            return super()._open(path, mode)

    found = run.attempt(lambda rank: rank.found, files={1: Lagging(10**9)})

    assert [f.step for f in found] == [10, 10]
    assert not (run.directory(20) / "rejected.json").exists()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", DAMAGES)
def test_retention_sees_what_it_can_without_reading_tensors(run, name, kind):
    change, expected = DAMAGES[kind]
    damage(run, name, change)
    seen = not is_sound(run.store(), Place(20, 1))

    by_size_alone = name.startswith("shard") or name == "state.json"
    assert seen or (by_size_alone and expected is Rejection.CHECKSUM)


def test_a_whole_checkpoint_under_another_name_is_not_one(run):
    run.directory(20).rename(run.root / "step-00000030-1")

    assert [found.step for found in run.choose()] == [10, 10]
    ((step, rejection),) = [(r.step, r.rejection) for r in run.log.of(CheckpointRejected)]
    assert (step, rejection) == (30, Rejection.TORN)


def test_files_that_do_not_belong_there_are_no_concern(run):
    (run.directory(20) / "notes.txt").write_text("mine")

    assert [found.step for found in run.choose()] == [20, 20]
