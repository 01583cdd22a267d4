"""What the ranks of a node read together: every byte once, into memory that goes back and never mixes."""

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.local import LocalFileOpener, LocalFileSystem
from torch import nn

from harness import points
from harness.checkpoint.arena import Address, Arena, Span, layout, scattered
from harness.checkpoint.audit import manifest_of
from harness.checkpoint.load import load
from harness.checkpoint.manifest import Place
from harness.checkpoint.refusals import RestoreError
from harness.components import Protected
from harness.events import CheckpointRejected
from harness.points import Point
from tests.harness.checkpoint.world import Rank, Run, together


class Counting(LocalFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Counts the bytes that are read of each file."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[str, int] = {}

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return _Counted(path, mode, fs=self) if mode == "rb" else super()._open(path, mode)


class _Counted(LocalFileOpener):  # type: ignore[misc]
    def readinto(self, view: memoryview) -> int:
        return self._count(self.f.readinto(view))

    def read(self, size: int = -1) -> bytes:
        data: bytes = self.f.read(size)
        self._count(len(data))
        return data

    def _count(self, got: int) -> int:
        name = "/".join(Path(self.path).parts[-2:])
        self.fs.read[name] = self.fs.read.get(name, 0) + got
        return got


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "checkpoints")


def sizes(run: Run, step: int) -> dict[str, int]:
    return {
        "/".join(path.parts[-2:]): path.stat().st_size for path in run.directory(step).iterdir()
    }


def read_by(run: Run, world_size: int, nodes: dict[int, str] | None = None) -> list[dict[str, int]]:
    """What each rank of a new attempt read of the checkpoints' files."""
    files = {rank: Counting() for rank in range(world_size)}
    found = run.attempt(lambda rank: rank.found, world_size, files=files, nodes=nodes)
    for state in found:
        assert state is not None
        assert torch.equal(state.shared["model"]["weight"], torch.full((8, 4), 10.0))
    return [
        {name: size for name, size in files[rank].read.items() if name.startswith("step-")}
        for rank in range(world_size)
    ]


def test_every_byte_is_read_once_over_all_ranks(run):
    run.commit(10, world_size=3)

    read = read_by(run, 3)

    together: dict[str, int] = {}
    for files in read:
        assert together.keys().isdisjoint(files)
        together |= files
    assert together == sizes(run, 10)
    assert all(read)


def test_every_node_reads_every_byte_once(run):
    run.commit(10, world_size=3)

    read = read_by(run, 4, {0: "here", 1: "there", 2: "here", 3: "there"})

    for node in ((0, 2), (1, 3)):
        (first, second) = (read[rank] for rank in node)
        assert first.keys().isdisjoint(second)
        assert first | second == sizes(run, 10)


def test_what_a_rank_writes_into_its_state_no_other_rank_sees(run):
    run.commit(10)

    first, second = run.choose()
    first.shared["model"]["weight"].fill_(-1)

    assert torch.equal(second.shared["model"]["weight"], torch.full((8, 4), 10.0))


def test_every_tensor_can_be_kept_or_copied_without_the_others(run):
    run.commit(10)
    found = load(run.store(), Place(10, 1), 0)

    weight = found.shared["model"]["weight"]
    assert weight.untyped_storage().nbytes() == weight.numel() * weight.element_size()


def mappings() -> list[str]:
    gc.collect()
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "harness-restore" in line]


def descriptors() -> list[str]:
    links = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [str(link) for link in links if "harness-restore" in str(link)]


class Average:
    """Keeps what it is given, as many objects do."""

    def __init__(self) -> None:
        self.kept: Any = {"mean": torch.zeros(4)}

    def state_dict(self) -> Any:
        return self.kept

    def load_state_dict(self, state: Any) -> None:
        self.kept = state


class Remembering(nn.Linear):
    """A module with a state of its own kind, which it keeps."""

    extra: Any = torch.zeros(2)

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


def job(value: float) -> tuple[Protected, Remembering, Average]:
    """Everything that can adopt what it is given, with a state that equals `value`."""
    model = Remembering(3, 4)
    model.register_buffer("scale", torch.full((2,), value))
    model.register_buffer("cache", torch.full((int(value),), value), persistent=False)
    model.extra = torch.full((2,), value)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.5))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)
    optimizer.step()
    average, stream = Average(), torch.Generator().manual_seed(int(value))
    average.kept = {"mean": torch.full((4,), value)}
    protected = Protected(1)
    protected.add(model=model, optimizer=optimizer, average=average, stream=stream)
    return protected, model, average


def test_once_the_state_is_in_place_nothing_keeps_the_memory_in_which_it_was_read(run):
    saved = job(3.0)[0]

    def save(rank: Rank) -> bool:
        rank.saver.at_step(1, saved.shared, saved.own, force=True)
        return rank.saver.finish(20)

    assert run.attempt(save, 1) == [True]
    (found,) = run.choose(1)
    assert len(mappings()) > 0
    assert descriptors() != []  # a mapping has one of its own

    protected, model, average = job(7.0)
    protected.restore(found.shared, found.own)
    del found

    assert (mappings(), descriptors()) == ([], [])
    assert model.extra.tolist() == average.kept["mean"].tolist()[:2] == [3.0, 3.0]
    assert protected.digests() == saved.digests()


def test_a_state_that_does_not_fit_is_refused_by_name_and_nothing_is_modified(run):
    saved = job(3.0)[0]

    def save(rank: Rank) -> bool:
        rank.saver.at_step(1, saved.shared, saved.own, force=True)
        return rank.saver.finish(20)

    assert run.attempt(save, 1) == [True]
    (found,) = run.choose(1)
    protected, model = Protected(1), nn.Linear(2, 4, bias=False)
    model.register_parameter("added", nn.Parameter(torch.zeros(2)))
    protected.add(model=model)
    before = protected.digests()

    with pytest.raises(ValueError, match="the saved state does not fit") as refused:
        protected.restore(found.shared, found.own)

    told = str(refused.value)
    for line in (
        "model.bias is in the saved state and not here",
        "model.added is here and not in the saved state",
        "model.weight is float32[4, 2] and was float32[4, 3]",
    ):
        assert line in told
    assert protected.digests() == before


def test_a_restore_that_fails_leaves_no_memory(run):
    run.commit(10)
    (run.directory(10) / "state.json").write_bytes(b"{}")

    with pytest.raises(ValueError, match="none of them can be resumed"):
        run.choose(3)

    assert (mappings(), descriptors()) == ([], [])


def test_memory_that_is_gone_is_not_taken_for_another_file(run, tmp_path):
    run.commit(10)
    manifest = manifest_of(run.store(), Place(10, 1))
    with Arena.create(manifest, [0, 1]) as arena, (tmp_path / "other").open("wb") as other:
        with Arena.open(arena.address, [0, 1]) as joined:
            assert joined.manifest == manifest
            assert joined.layout == arena.layout
        size, described = arena.address.size_bytes, arena.address.manifest_bytes
        with pytest.raises(OSError, match="not the memory that was made"):
            Arena.open(Address(arena.address.pid, other.fileno(), size, described), [0, 1])


def test_tensors_lie_one_after_the_other_and_those_that_nobody_here_needs_do_not(run):
    run.commit(10, world_size=3)
    manifest = manifest_of(run.store(), Place(10, 1))

    here = layout(manifest, [1, 5])

    state = manifest.files["state.json"].size
    assert here.tensors == {"shared/model/weight": 0, "rank-0/rng": 128, "rank-1/rng": 192}
    assert (here.state, here.size_bytes) == ((256, 256 + state), 256 + state)


def test_a_portion_of_a_file_goes_where_its_parts_belong():
    kept = [Span(10, 14, 100), Span(14, 20, 0), Span(25, 30, 50)]

    assert list(scattered(kept, 0, 10)) == []
    assert list(scattered(kept, 12, 14)) == [
        (102, slice(0, 2)),
        (0, slice(2, 8)),
        (50, slice(13, 14)),
    ]
    assert list(scattered(kept, 26, 100)) == [(51, slice(0, 4))]
    assert list(scattered([], 0, 10)) == []


def test_a_file_that_is_half_read_is_a_point_that_faults_can_hang_on(run):
    run.commit(10)
    seen: list[int] = []
    points.arm(Point.RESTORE_READ, lambda: seen.append(threading.get_ident()))
    try:
        assert [found.step for found in run.choose()] == [10, 10]
    finally:
        points.disarm()
    assert len(seen) == 3  # two shards and the state


class Spoiling(Counting):
    """Spoils the first read of one file in the way that is asked for."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.spoilt = 0

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "rb" or self.spoilt or not path.endswith("state.json"):
            return super()._open(path, mode, **options)
        self.spoilt += 1
        if self.way == "input/output error":
            raise OSError(5, "Input/output error", path)
        if self.way == "not there":
            raise FileNotFoundError(2, "No such file or directory", path)
        return _Spoilt(path, mode, fs=self)


class _Spoilt(_Counted):
    def readinto(self, view: memoryview) -> int:
        if self.fs.way == "cut":
            return 0
        got = super().readinto(view)
        if got:
            view[0] ^= 1
        return got


@pytest.mark.parametrize("way", ["input/output error", "not there", "cut", "a bit flipped"])
def test_a_read_that_goes_wrong_once_is_no_damage(run, way):
    run.commit(10)

    files = {rank: Spoiling(way) for rank in range(2)}
    found = run.attempt(lambda rank: rank.found, files=files)

    assert [state.step for state in found] == [10, 10]
    assert all(state.own["rank"] == rank for rank, state in enumerate(found))
    assert sum(disk.spoilt for disk in files.values()) == 1
    assert run.log.of(CheckpointRejected) == []


def test_a_rank_that_cannot_make_the_memory_ends_the_attempt_and_costs_no_step(run, monkeypatch):
    run.commit(10, 20)
    made = Arena.create

    def refuse(manifest: Any, ranks: Any) -> Arena:
        if manifest.step == 20:
            raise OSError(12, "Cannot allocate memory")
        return made(manifest, ranks)

    monkeypatch.setattr(Arena, "create", refuse)
    with pytest.raises(
        RestoreError, match=r"step-00000020-1 .* cannot be read now .*Cannot allocate"
    ):
        run.choose(3)
    assert together(1, lambda _: mappings()) == [[]]
