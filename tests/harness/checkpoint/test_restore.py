import errno
import threading
from dataclasses import replace

import pytest
import torch
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from torch.distributed import HashStore

from harness import points
from harness.checkpoint.arena import Arena
from harness.checkpoint.audit import manifest_of
from harness.checkpoint.lineage import Departure
from harness.checkpoint.load import read
from harness.checkpoint.manifest import Place
from harness.checkpoint.refusals import RestoreError
from harness.checkpoint.restore import choose
from harness.checkpoint.store import Store
from harness.checkpoint.tree import DTYPES
from harness.events import CheckpointRejected, Rejection
from harness.points import Point
from tests.harness.checkpoint.world import FullDisk, Log, Rank, Run, together


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "checkpoints")


def damage(run: Run, step: int) -> None:
    """One bit of rank 1's shard."""
    path = run.directory(step) / "shard-00001-of-00002.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_run_without_checkpoints_starts_from_nothing(run):
    assert run.choose() == [None, None]
    assert run.store().departures() == {1: Departure(None, 0)}


def test_every_rank_gets_what_was_saved_and_its_own(run):
    def body(rank: Rank) -> bool:
        return rank.save(10, value=0.1)

    assert run.attempt(body, 3, fingerprint={"torch": "2.13", "threads": "1"}) == [True] * 3

    for rank, found in enumerate(run.choose(3)):
        model = found.shared["model"]
        assert (found.step, found.saved_by, found.world_size) == (10, 1, 3)
        assert found.fingerprint == {"torch": "2.13", "threads": "1"}
        assert torch.equal(model["weight"], torch.full((8, 4), 0.1))
        assert model["tied"] is model["weight"]
        assert found.shared["optimizer"] == {"lr": 0.1, "state": {0: ()}}
        assert found.own["rng"].tolist() == [rank] * 3
        assert (found.own["rank"], found.own["step"]) == (rank, 0.1)
        assert not found.new_rank
    assert run.store().departures()[2] == Departure(1, 10)


def test_reading_is_a_sign_of_life_and_waiting_is_none(run):
    run.commit(10)
    place = next(iter(run.store().places()))
    manifest = manifest_of(run.store(), place)
    signs: list[int] = []
    with Arena.create(manifest, [0]) as arena:
        read(run.store(), place, arena, manifest.files, lambda: signs.append(1))
    assert len(signs) >= len(manifest.files) > 1
    signs.clear()

    store, attempt = run.store(), run.store().claim_attempt()
    with pytest.raises(RestoreError, match="no word on"):
        choose(
            store,
            HashStore(),
            1,
            2,
            attempt,
            "auto",
            Log(),
            deadline_s=0.1,
            alive=lambda: signs.append(1),
        )
    assert signs == []


def test_every_dtype_and_shape_comes_back_to_the_last_bit_from_any_division(run):
    generator = torch.Generator().manual_seed(1)
    shapes = [(), (0,), (7,), (1, 9), (13, 1, 3), (2, 0)]
    saved = {
        f"{name} {shape}": torch.randint(0, 2, shape, generator=generator).to(dtype)
        for name, dtype in DTYPES.items()
        for shape in shapes
    }
    saved["turned"] = torch.arange(40.0).view(5, 8).t()

    def body(rank: Rank) -> bool:
        rank.saver.at_step(1, lambda: saved, lambda: {"mine": saved}, force=True)
        return rank.saver.finish(20)

    assert run.attempt(body, 3) == [True] * 3
    for found in run.choose(3):
        for tree in (found.shared, found.own["mine"]):
            assert tree.keys() == saved.keys()
            for name, tensor in saved.items():
                assert (tree[name].dtype, tree[name].shape) == (tensor.dtype, tensor.shape), name
                assert bits(tree[name]) == bits(tensor), name


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def test_fewer_ranks_take_their_own_and_more_ranks_take_that_of_rank_0(run):
    run.commit(10, world_size=3)

    assert [found.own["rank"] for found in run.choose(2)] == [0, 1]
    more = run.choose(5)
    assert [found.own["rank"] for found in more] == [0, 1, 2, 0, 0]
    assert [found.new_rank for found in more] == [False, False, False, True, True]
    assert all(torch.equal(f.shared["model"]["weight"], torch.full((8, 4), 10.0)) for f in more)


def test_an_unfinished_newer_save_is_passed_by_without_a_word(run):
    run.commit(10)

    def body(rank: Rank) -> None:
        if rank.rank == 1:
            rank.store.files.room = 100
        rank.at(20, force=True)
        rank.saver.finish(20)

    run.attempt(body, files={rank: FullDisk(10**9) for rank in range(2)})
    directory = run.root / "step-00000030-2"  # killed before the commit
    directory.mkdir()
    (directory / "shard-00000-of-00002.safetensors").write_bytes(b"half")

    assert [found.step for found in run.choose()] == [10, 10]
    assert run.log.of(CheckpointRejected) == []


def test_the_newest_that_verifies_is_taken_and_the_others_are_told(run, capfd):
    run.commit(10, 20, 30)
    damage(run, 30)
    damage(run, 20)

    assert [found.step for found in run.choose()] == [10, 10]

    rejected = run.log.of(CheckpointRejected)
    assert [(r.step, r.saved_by, r.rejection) for r in rejected] == [
        (30, 1, Rejection.CHECKSUM),
        (20, 1, Rejection.CHECKSUM),
    ]
    lines = capfd.readouterr().err.splitlines()
    assert lines == [
        f"harness: walked past step-{r.step:08d}-1 (checksum): {r.reason}; set aside"
        for r in rejected
    ]
    assert "shard-00001-of-00002.safetensors has checksum" in rejected[0].reason


def test_what_was_walked_past_is_not_in_the_history_any_more(run):
    run.commit(10, 20)
    path = run.directory(20) / "shard-00001-of-00002.safetensors"
    good = path.read_bytes()
    damage(run, 20)
    assert run.choose()[0].step == 10
    path.write_bytes(good)  # readable again, but the run has gone on from 10

    assert run.choose()[0].step == 10


def test_a_damaged_older_checkpoint_does_not_block_a_newer_one(run):
    run.commit(10, 20)
    damage(run, 10)

    assert [found.step for found in run.choose()] == [20, 20]
    assert run.log.of(CheckpointRejected) == []


def test_nothing_whole_is_an_error_and_not_a_start_from_nothing(run):
    run.commit(10, 20)
    damage(run, 10)
    damage(run, 20)

    with pytest.raises(RestoreError, match=r"none of them can be resumed.*resume=fresh"):
        run.choose()
    assert run.choose(resume="fresh") == [None, None]


def test_a_fresh_start_leaves_what_was_there_behind(run):
    run.commit(10)
    run.commit(4, resume="fresh")

    assert [found.step for found in run.choose()] == [4, 4]


def test_a_fresh_start_that_died_early_is_a_fresh_start_again(run):
    run.commit(10)
    assert run.choose(resume="fresh") == [None, None]

    assert run.choose() == [None, None]


def test_a_lost_checkpoint_that_an_attempt_departed_from_is_an_error(run):
    run.commit(10)
    assert run.choose()[0].step == 10
    for path in [*run.directory(10).iterdir()]:
        path.unlink()

    with pytest.raises(RestoreError, match="none of them can be resumed"):
        run.choose()


def test_a_step_that_is_asked_for_is_taken(run):
    run.commit(10, 20, 30)

    assert [found.step for found in run.choose(resume="20")] == [20, 20]
    assert [found.step for found in run.choose()] == [20, 20]  # 30 is history that never was


def test_after_a_spike_the_newest_state_from_before_it_is_taken_and_what_came_after_never_was(run):
    run.commit(10, 20, 30)

    assert [found.step for found in run.choose(before=29)] == [20, 20]
    assert [found.step for found in run.choose()] == [20, 20]


def test_where_nothing_from_before_a_spike_is_left_the_oldest_is_taken_and_that_is_said(run, capfd):
    run.commit(10, 20, 30)
    damage(run, 10)

    assert [found.step for found in run.choose(before=5)] == [20, 20]
    assert "no state of at most 5 steps is left: step-00000020-" in capfd.readouterr().err


def test_a_step_that_is_asked_for_is_taken_though_a_spike_is_before_it(run):
    run.commit(10, 20, 30)

    assert [found.step for found in run.choose(resume="30", before=5)] == [30, 30]


def test_a_step_that_is_asked_for_and_damaged_is_an_error_with_the_good_ones(run):
    run.commit(10, 20, 30)
    damage(run, 20)
    damage(run, 10)

    with pytest.raises(RestoreError, match=r"step 20 that was asked for is damaged.*good ones: 30"):
        run.choose(resume="20")
    with pytest.raises(RestoreError, match=r"step 15 that was asked for is not there.*ones: 30"):
        run.choose(resume="15")


def test_a_step_that_is_asked_for_and_was_never_committed_is_an_error_and_not_a_step_back(run):
    run.commit(10)
    directory = run.root / "step-00000020-1"  # killed before the commit
    directory.mkdir()
    (directory / "shard-00000-of-00002.safetensors").write_bytes(b"half")

    with pytest.raises(RestoreError, match=r"step 20 that was asked for is not there.*ones: 10"):
        run.choose(resume="20")
    assert [found.step for found in run.choose()] == [10, 10]


def test_the_same_error_reaches_every_rank(run):
    run.commit(10)
    store = run.store()
    attempt, messages = store.claim_attempt(), HashStore()

    def live(rank: int) -> str:
        with pytest.raises(RestoreError) as caught:
            choose(store, messages, rank, 3, attempt, "99", Log())
        return str(caught.value)

    assert len(set(together(3, live))) == 1


def test_a_rank_that_cannot_read_makes_all_walk_back(run):
    run.commit(10, 20)

    class Blind(FullDisk):
        def _open(self, path, mode="rb", **options):
            if "step-00000020" in path and mode == "rb":
                raise OSError(errno.EIO, "Input/output error", path)
            return super()._open(path, mode)

    found = run.attempt(lambda rank: rank.found, 3, files={2: Blind(10**9)})
    assert [f.step for f in found] == [10, 10, 10]
    (rejected,) = run.log.of(CheckpointRejected)
    assert rejected.rejection is Rejection.UNREADABLE
    assert rejected.reason.startswith("rank 2: OSError: [Errno 5]")


def test_a_rank_whose_listing_lags_loads_what_rank_0_says(run):
    run.commit(10, 20)

    class Lagging(DirFileSystem):  # type: ignore[misc]  # fsspec ships no types
        cachable = False

        def find(self, path, *args, **options):
            found = super().find(path, *args, **options)
            return {name: it for name, it in found.items() if "step-00000020" not in name}

    lagging = Lagging("/", LocalFileSystem())
    assert replace(run.store(), files=lagging).committed() == [Place(10, 1)]
    found = run.attempt(lambda rank: rank.found, files={1: lagging})
    assert [f.step for f in found] == [20, 20]


@pytest.mark.parametrize("missing", [0, 1])
def test_a_rank_that_never_comes_is_an_error_and_not_a_hang(run, missing):
    run.commit(10)
    store = run.store()
    attempt = store.claim_attempt()

    with pytest.raises(RestoreError, match=r"no agreement .* no word on .* within 0\.[12] s"):
        choose(store, HashStore(), 1 - missing, 2, attempt, "auto", Log(), deadline_s=0.1)


def test_rank_0_that_fails_takes_the_others_with_it(run):
    run.commit(10)
    store = run.store()
    attempt, messages = store.claim_attempt(), HashStore()
    (run.root / "attempts/00001.json").write_text("{")

    def live(rank: int) -> str:
        with pytest.raises(ValueError, match=r"attempts/00001.json is damaged") as caught:
            choose(store, messages, rank, 2, attempt, "auto", Log())
        return type(caught.value).__name__

    assert together(2, live) == ["StoreError", "RestoreError"]


def test_an_attempt_chooses_once(run):
    store = run.store()
    choose(store, HashStore(), 0, 1, 1, "auto", Log())
    with pytest.raises(ValueError, match="attempt 1 has chosen its state already"):
        choose(store, HashStore(), 0, 1, 1, "auto", Log())


def test_the_newest_of_two_attempts_at_one_step_is_taken(run):
    run.commit(10)

    def body(rank: Rank) -> bool:
        return rank.save(10, value=2.0)

    assert run.attempt(body) == [True, True]
    found = run.choose()[0]
    assert (found.saved_by, found.shared["optimizer"]["lr"]) == (2, 2.0)


def test_a_second_save_of_a_step_that_dies_half_way_never_mixes_with_the_first(run):
    run.commit(100)

    def body(rank: Rank) -> bool:
        return rank.save(100, value=2.0)

    assert run.attempt(body, files={1: FullDisk(100)}) == [False, False]
    for rank, found in enumerate(run.choose()):
        assert found.saved_by == 1
        assert torch.equal(found.shared["model"]["weight"], torch.full((8, 4), 100.0))
        assert found.shared["optimizer"]["lr"] == found.own["step"] == 100.0
        assert found.own["rank"] == rank


def test_restoring_is_a_point_that_faults_can_hang_on(run):
    seen: list[int] = []
    points.arm(Point.RESTORE, lambda: seen.append(threading.get_ident()))
    try:
        run.choose()
    finally:
        points.disarm()
    assert len(seen) == 2


def test_a_store_of_another_run_is_never_resumed_from(run):
    run.commit(10)
    with pytest.raises(ValueError, match="holds the checkpoints of run 'run'"):
        Store.open(f"file://{run.root}", "other")
