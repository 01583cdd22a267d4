import errno
import json
import os
import re
import threading
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch.distributed import HashStore, PrefixStore, TCPStore

from harness import points
from harness.checkpoint.commit import publish
from harness.checkpoint.manifest import Place
from harness.checkpoint.restore import choose
from harness.checkpoint.save import Checkpointer
from harness.checkpoint.share import Report
from harness.events import SaveCommitted, SaveFailed, SaveStarted, SaveUnblocked, Tier
from harness.points import Point
from harness.slots import Mark, SlotWriter
from harness.slots import read as read_slot
from tests.harness.checkpoint.world import (
    DEADLINE_S,
    Beside,
    FullDisk,
    Rank,
    Run,
    SlowDisk,
    own,
    shared,
)


@pytest.fixture(params=["alone", "saver"])
def run(tmp_path, request):
    run = Run(tmp_path / "checkpoints")
    beside = Beside(run) if request.param == "saver" else None
    yield run
    if beside is not None:
        beside.close()


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    points.disarm()


def test_a_checkpoint_is_shards_and_three_files_that_name_one_save(run):
    run.commit(10)

    directory = run.directory(10)
    assert sorted(path.name for path in directory.iterdir()) == [
        "commit.json",
        "manifest.json",
        "shard-00000-of-00002.safetensors",
        "shard-00001-of-00002.safetensors",
        "state.json",
    ]
    assert directory.name == "step-00000010-1"
    for rank in range(2):
        path = directory / f"shard-{rank:05d}-of-00002.safetensors"
        tensors = safetensors.torch.load_file(path)
        assert tensors.keys() == {"shared/model/weight", f"rank-{rank}/rng"}
        assert tensors["shared/model/weight"].shape == (4, 4)
        with safetensors.safe_open(path, "pt") as file:
            assert file.metadata() == {
                "format": "pt",
                "run_id": "run",
                "step": "10",
                "attempt": "1",
                "rank": str(rank),
                "part": "0",
            }
    manifest = json.loads((directory / "manifest.json").read_text())
    begins = [manifest["tensors"]["shared/model/weight"]["pieces"][n].pop("begin") for n in (0, 1)]
    for rank, begin in enumerate(begins):
        shard = (directory / f"shard-{rank:05d}-of-00002.safetensors").read_bytes()
        assert shard[begin : begin + 64] == torch.full((4, 4), 10.0).numpy().tobytes()
    assert manifest["tensors"]["shared/model/weight"] == {
        "dtype": "F32",
        "shape": [8, 4],
        "pieces": [
            {
                "file": f"shard-0000{rank}-of-00002.safetensors",
                "key": "shared/model/weight",
                "offset": 4 * rank,
                "rows": 4,
            }
            for rank in range(2)
        ],
    }
    assert json.loads((directory / "state.json").read_text())["own"] == [
        {"rng": {"$tensor": "rng"}, "rank": rank, "step": 10.0} for rank in range(2)
    ]


def test_rank_0_tells_each_save_from_start_to_commit_with_its_bytes(run):
    run.commit(10)

    size = sum(path.stat().st_size for path in run.directory(10).iterdir())
    assert run.log.events == [
        SaveStarted(10, Tier.STORAGE),
        SaveUnblocked(10, Tier.STORAGE),
        SaveCommitted(10, Tier.STORAGE, size),
    ]


def test_all_is_durable_before_the_commit_and_the_commit_after_it(run, monkeypatch):
    fsync, link = os.fsync, os.link
    done: list[str] = []

    def syncing(descriptor):
        done.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def linking(source, target):
        done.append(f"link {target.name}")
        link(source, target)

    def body(rank: Rank) -> bool:
        monkeypatch.setattr(os, "fsync", syncing)
        monkeypatch.setattr(os, "link", linking)
        return rank.save(10)

    assert run.attempt(body, 1) == [True]
    assert [re.sub(r"\.[0-9a-f]{32}$", "", name) for name in done] == [
        "checkpoints",
        ".shard-00000-of-00001.safetensors",
        "step-00000010-1",
        ".state.json",
        "step-00000010-1",
        ".manifest.json",
        "step-00000010-1",
        ".commit.json",
        "link commit.json",
        "step-00000010-1",
        ".newest.json",
        "attempts",
    ]


def test_a_shard_above_the_cap_is_split_and_comes_back_whole(run):
    def body(rank: Rank) -> bool:
        rank.saver._copier.shard_bytes = 1500
        return rank.save(10, rows=200)

    assert run.attempt(body) == [True, True]
    names = sorted(path.name for path in run.directory(10).glob("shard-00000*"))
    assert names == [
        "shard-00000-of-00002-part-1.safetensors",
        "shard-00000-of-00002.safetensors",
    ]
    assert all(path.stat().st_size <= 1500 for path in run.directory(10).glob("shard-*"))
    for found in run.choose():
        assert torch.equal(found.shared["model"]["weight"], torch.full((200, 4), 10.0))


def test_training_goes_on_while_the_state_is_written_and_later_steps_do_not_reach_it(run):
    disks = {rank: SlowDisk() for rank in range(2)}

    def body(rank: Rank) -> list[bool]:
        weight, momentum, position = torch.zeros(50, 4), torch.zeros(50, 4), [0]
        tree = {"model": {"w": weight}, "optimizer": {"m": momentum, "position": position}}
        saved = []
        for step in range(1, 7):  # step 1 is copied at once, and written after step 6
            weight.fill_(step)
            momentum.fill_(step)
            position[0] = step
            saved.append(rank.saver.at_step(step, lambda: tree, lambda: {"position": position}))
        disks[rank.rank].go_on.set()
        return [*saved, rank.saver.finish(DEADLINE_S)]

    saved = run.attempt(body, files=disks, every_steps=1)
    assert saved == [[True, False, False, False, False, False, True]] * 2

    for found in run.choose():
        assert found.step == 1
        assert found.shared["model"]["w"].unique().tolist() == [1]
        assert found.shared["optimizer"]["m"].unique().tolist() == [1]
        assert found.shared["optimizer"]["position"] == found.own["position"] == [1]


def test_the_newer_state_replaces_the_one_that_waits(run):
    disk = SlowDisk()

    def body(rank: Rank) -> list[int]:
        started = []
        for step in range(1, 9):
            if step == 8 and rank.rank == 0:
                disk.go_on.set()
                assert rank.saver._writer.wait(DEADLINE_S)
            if rank.at(step):
                started.append(step)
        assert rank.saver.finish(DEADLINE_S)
        return started

    # Due at 3 and 6; 3 is being written until 8, so 6 waits and 8 is saved in its place.
    assert run.attempt(body, files={0: disk}, every_steps=3) == [[3, 8], [3, 8]]
    assert run.steps() == [3, 8]


def test_the_last_save_waits_for_the_one_in_flight_and_is_not_made_twice(run):
    disk = SlowDisk()

    def body(rank: Rank) -> list[bool]:
        saved = [rank.at(1)]
        if rank.rank == 1:
            assert disk.reached.wait(DEADLINE_S)
            threading.Timer(0.05, disk.go_on.set).start()
        saved += [rank.at(2, force=True), rank.at(2, force=True)]
        return [*saved, rank.saver.finish(DEADLINE_S)]

    assert run.attempt(body, files={0: disk}, every_steps=1) == [[True] * 4] * 2
    assert run.steps() == [1, 2]
    assert [event.step for event in run.log.of(SaveStarted)] == [1, 2]


def test_memory_stays_flat_over_many_saves(run):
    rows = 500_000  # 8 MB

    def resident_bytes() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def body(rank: Rank) -> int:
        state = shared(1.0, rows)
        sizes = []
        for step in range(1, 13):
            rank.saver.at_step(step, lambda: state, lambda: own(0, 1.0), force=True)
            assert rank.saver.finish(DEADLINE_S)
            sizes.append(resident_bytes())
        return sizes[-1] - sizes[2]

    (grown,) = run.attempt(body, world_size=1, keep=1)
    assert grown < 4_000_000


# ── saves that fail ─────────────────────────────────────────────────────────────────────────────


def failed(run: Run) -> list[tuple[int, str]]:
    return [(event.step, event.reason) for event in run.log.of(SaveFailed)]


def whole(run: Run, step: int) -> None:
    """The state of `step` is what a new attempt resumes from, on both ranks."""
    for rank, found in enumerate(run.choose()):
        assert found is not None
        assert found.step == step
        assert torch.equal(found.shared["model"]["weight"], torch.full((8, 4), float(step)))
        assert found.own["rng"].tolist() == [rank] * 3


@pytest.mark.parametrize("full", [0, 1])
def test_a_full_disk_fails_the_save_and_nothing_else(run, full, capfd):
    run.commit(10)
    written = ["shard-00000-of-00002.safetensors", "state.json", "manifest.json"]
    names = written if full == 0 else ["shard-00001-of-00002.safetensors"]
    ends = [0]
    for name in names:
        ends.append(ends[-1] + (run.directory(10) / name).stat().st_size)
    rooms = sorted({end + off for end in ends for off in (-1, 0, 1)} & set(range(ends[-1])))
    disk = FullDisk(0)

    def body(rank: Rank) -> list[bool]:
        saved = []
        for number, room in enumerate(rooms):
            if rank.rank == full:
                disk.room = room
            saved.append(rank.save(20 + number))
        if rank.rank == full:
            disk.room = 10**9
        return [*saved, rank.save(50)]

    assert len(rooms) == 3 * len(names)
    assert run.attempt(body, files={full: disk}) == [[False] * len(rooms) + [True]] * 2

    assert [step for step, _ in failed(run)] == list(range(20, 20 + len(rooms)))
    lines = capfd.readouterr().err
    for step, reason in failed(run):
        assert f"[Errno {errno.ENOSPC}] No space left on device" in reason
        assert f"harness: the save of step {step} failed: {reason}; training goes on\n" in lines
    assert run.steps() == [10, 50]
    assert len(list(run.root.glob("step-*"))) == 2
    whole(run, 50)


class CheckpointException(BaseException):
    """Not an `Exception`, like the one of torch's own checkpoints."""


@pytest.mark.parametrize(
    "point", [Point.SAVE_COPY, Point.SAVE_SHARD, Point.SAVE_MANIFEST, Point.SAVE_COMMIT]
)
@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), CheckpointException("bad")])
def test_whatever_fails_wherever_leaves_the_old_checkpoint_and_training(run, point, error):
    def fail() -> None:
        raise error

    def body(rank: Rank) -> list[bool]:
        saved = [rank.save(10)]
        points.arm(point, fail)
        saved.append(rank.save(20))
        return saved

    try:  # for both ranks: one that is late must not get past it because the other has ended
        assert run.attempt(body) == [[True, False]] * 2
    finally:
        points.disarm()
    assert [step for step, _ in failed(run)] == [20]
    assert not list(run.root.glob("step-00000020-*"))
    whole(run, 10)


def test_the_failure_of_one_rank_is_heard_at_once_whatever_its_kind(run):
    class Broken(FullDisk):
        def _open(self, path, mode="rb", **options):
            if mode == "wb" and "shard-00001" in str(path):
                raise CheckpointException("no good")
            return super()._open(path, mode)

    assert run.attempt(lambda rank: rank.save(10), files={1: Broken(10**9)}) == [False, False]
    assert failed(run) == [(10, "rank 1: CheckpointException: no good")]


def test_a_step_whose_save_failed_can_be_saved_again_beside_it(run):
    disk = FullDisk(0)

    def body(rank: Rank) -> list[bool]:
        saved = [rank.save(10)]
        disk.room = 10**9
        return [*saved, rank.save(10)]

    assert run.attempt(body, files={1: disk}) == [[False, True]] * 2
    assert run.directory(10).name == "step-00000010-1-try-2"
    whole(run, 10)


def test_state_that_cannot_be_saved_is_a_failed_save_that_names_the_path(run):
    def body(rank: Rank) -> bool:
        tree = {"sampler": {"seen": {1} if rank.rank else []}}
        rank.saver.at_step(10, lambda: shared(1), lambda: tree, force=True)
        return rank.saver.finish(DEADLINE_S)

    assert run.attempt(body) == [False, False]
    ((_, reason),) = failed(run)
    assert reason.startswith("rank 1: StateError:")
    assert "sampler/seen: set is not a kind of state" in reason


def test_ranks_that_do_not_hold_the_same_tensors_do_not_get_mixed(run):
    def body(rank: Rank) -> bool:
        return rank.save(10, rows=8 + rank.rank)

    assert run.attempt(body) == [False, False]
    ((_, reason),) = failed(run)
    assert reason == "the shared tensors of rank 1 differ from rank 0's in name, dtype or shape"


def test_a_rank_that_is_not_heard_of_fails_the_save_at_the_deadline(run):
    over = threading.Event()

    def body(rank: Rank) -> bool:
        if rank.rank == 1:
            return not over.wait(DEADLINE_S)
        saved = rank.save(10)
        over.set()
        return saved

    assert run.attempt(body, deadline_s=0.2) == [False, False]
    assert failed(run) == [(10, "no report of rank 1 within 0.2 s")]


@pytest.mark.parametrize("run", ["alone"], indirect=True)  # a saver answers for all ranks at once
def test_a_rank_that_still_writes_is_left_out_of_the_next_save_and_not_overwritten(run):
    disk = SlowDisk()

    def body(rank: Rank) -> list[bool]:
        if rank.rank == 0:
            saved = [rank.save(10), rank.save(20)]
            disk.go_on.set()
        else:
            rank.at(10, force=True)
            rank.at(20, force=True)
            saved = [False, False]
        assert rank.saver._writer.wait(DEADLINE_S)
        return [*saved, rank.save(30)]

    saved = run.attempt(body, files={1: disk}, deadline_s=1.0)
    assert saved == [[False, False, True]] * 2
    assert failed(run) == [
        (10, "no report of rank 1 within 1 s"),
        (20, "rank 1: is still writing the state of step 10"),
    ]
    whole(run, 30)


def test_a_save_that_never_ends_is_given_up_and_never_committed_later(run):
    disk = SlowDisk()

    def body(rank: Rank) -> list[bool]:
        saved = [rank.saver.at_step(10, lambda: shared(10), lambda: own(0, 10))]
        saved.append(rank.saver.at_step(20, lambda: shared(20), lambda: own(0, 20), force=True))
        disk.go_on.set()
        saved.append(rank.saver.finish(DEADLINE_S))
        return saved

    assert run.attempt(body, 1, files={0: disk}, every_steps=10, deadline_s=0.1) == [
        [True, False, False]
    ]
    stuck = "the save of step 10 has not ended for 0.2 s"
    assert sorted(failed(run)) == [(10, stuck), (20, stuck)]
    assert run.steps() == []
    assert not list(run.root.glob("step-*"))


def test_a_message_store_that_has_gone_costs_a_line_and_not_the_training(run, capfd):
    class Gone(HashStore):
        def check(self, keys):
            raise RuntimeError("connection reset")

        def set(self, key, value):
            raise RuntimeError("connection reset")

    store = run.store()
    store.record_lineage(1, None, 0)
    for rank in range(2):
        saver = Checkpointer(store, Gone(), rank, 2, 1, run.log)
        assert not saver.at_step(10, lambda: shared(1), lambda: own(0, 1), force=True)
        assert not saver.finish(1.0)
        saver.close()
        line = f"rank {rank} cannot save step 10: RuntimeError: connection reset"
        assert line in capfd.readouterr().err


def test_a_log_that_cannot_be_written_does_not_stop_a_save(run):
    class Full:
        def write(self, event):
            raise OSError(errno.ENOSPC, "No space left on device")

    run.log = Full()
    run.commit(10)
    assert run.steps() == [10]


def test_ending_the_process_in_the_copy_is_not_swallowed(run):
    def leave() -> None:
        raise SystemExit(75)

    def body(rank: Rank) -> None:
        points.arm(Point.SAVE_COPY, leave)
        with pytest.raises(SystemExit):
            rank.save(10)

    run.attempt(body, world_size=1)


# ── attempts that are no longer the newest ──────────────────────────────────────────────────────


def test_a_zombie_is_refused_its_commit_and_says_so(run):
    def body(rank: Rank) -> list[bool]:
        saved = [rank.save(10)]
        if rank.rank == 0:
            run.commit(20)  # attempt 2 takes over while attempt 1 lives on
        return [*saved, rank.save(30)]

    assert run.attempt(body) == [[True, False]] * 2
    assert failed(run) == [(30, "attempt 2 has taken over from attempt 1")]
    assert run.steps() == [10, 20]
    whole(run, 20)


def test_a_commit_of_a_zombie_in_the_last_instant_is_accepted_by_no_reader(run):
    run.commit(10)
    store = run.store()
    place = Place(40, 1)
    store.begin(place)

    def overtaken() -> None:  # attempt 2 departs after the zombie was found to be the newest
        other = run.store()
        choose(other, HashStore(), 0, 1, other.claim_attempt(), "auto", run.log)

    publish(store, place, [Report(0, shared="{}", own="{}")], {}, overtaken)

    assert run.steps() == [10, 40]
    whole(run, 10)


def test_an_attempt_that_never_chose_does_not_commit_what_no_one_would_read(run):
    attempt = run.store().claim_attempt()
    saver = Checkpointer(run.store(), HashStore(), 0, 1, attempt, run.log)
    assert saver.at_step(10, lambda: shared(1), lambda: own(0, 1), force=True)
    assert not saver.finish(DEADLINE_S)
    saver.close()
    assert failed(run) == [(10, "attempt 1 never recorded what it resumed from")]


def test_a_directory_that_was_used_is_never_written_into_nor_removed(run):
    run.commit(10)
    before = {path: path.read_bytes() for path in run.directory(10).iterdir()}
    store, messages = run.store(), HashStore()
    (run.root / "attempts/00001.json").unlink()
    choose(store, messages, 0, 1, 1, "fresh", run.log)  # attempt 1 once more: a broken claim
    saver = Checkpointer(store, messages, 0, 1, 1, run.log)
    saver.at_step(10, lambda: shared(1), lambda: own(0, 1), force=True)
    assert not saver.finish(DEADLINE_S)
    saver.close()

    assert {path: path.read_bytes() for path in run.directory(10).iterdir()} == before
    assert failed(run)[0][1].startswith("rank 0: FileExistsError")


# ── around it ───────────────────────────────────────────────────────────────────────────────────


def test_ranks_that_talk_over_tcp_save_restore_and_leave_nothing_behind(run):
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    clients = []

    def connect() -> PrefixStore:
        clients.append(TCPStore("127.0.0.1", server.port, is_master=False))
        return PrefixStore("attempt-1", clients[-1])

    def body(rank: Rank) -> bool:
        for step in range(1, 30):
            rank.at(step)
        return rank.save(30)

    assert run.attempt(body, 3, connect=connect, every_steps=1) == [True] * 3
    found = run.attempt(lambda rank: rank.found, 3, connect=connect)

    assert [(f.step, f.own["rank"]) for f in found] == [(30, 0), (30, 1), (30, 2)]
    assert not any("save-" in key for key in server.list_keys())


def test_rank_0_leaves_last_for_its_process_may_host_the_messages(run):
    messages = HashStore()
    first, second = (Checkpointer(run.store(), messages, rank, 2, 1, run.log) for rank in range(2))
    leaving = threading.Thread(target=first.close)
    leaving.start()
    leaving.join(0.3)
    assert leaving.is_alive()
    second.close()
    leaving.join(DEADLINE_S)
    assert not leaving.is_alive()
    assert messages.num_keys() == 0


def test_messages_are_forgotten(run):
    messages = HashStore()
    store = run.store()
    store.record_lineage(1, None, 0)
    saver = Checkpointer(store, messages, 0, 1, 1, run.log, every_steps=1)
    for step in range(1, 40):
        saver.at_step(step, lambda: shared(1), lambda: own(0, 1))
    assert saver.at_step(99, lambda: shared(1), lambda: own(0, 1), force=True)
    assert saver.finish(DEADLINE_S)
    saver.close()
    assert messages.num_keys() == 0


def test_the_slot_shows_that_a_rank_saves_and_then_steps_again(run, tmp_path):
    with SlotWriter(tmp_path / "slot", 1) as slot:
        marks: list[Mark] = []

        def look() -> None:
            shown = read_slot(tmp_path / "slot")
            assert shown is not None
            marks.append(shown.mark)

        points.arm(Point.SAVE_COPY, look)
        run.attempt(lambda rank: rank.save(10), world_size=1, slot=slot)
        look()

        assert marks == [Mark.SAVING, Mark.STEPPING]


def test_when_nothing_is_due_nothing_is_asked_and_the_state_is_looked_at_once(run):
    def body(rank: Rank) -> tuple[int, list[str]]:
        looked: list[str] = []

        def state() -> object:
            looked.append("shared")
            return shared(1.0)

        for step in (1, 2, 3):
            assert not rank.saver.at_step(step, state, lambda: own(rank.rank, 1.0))
        return rank.saver._agreement.questions, looked

    assert run.attempt(body, every_steps=10) == [(0, ["shared"])] * 2
    assert run.attempt(body, every_steps=0) == [(0, [])] * 2


def test_the_memory_for_the_first_save_is_there_before_it_is_due(run):
    def body(rank: Rank) -> tuple[int, int]:
        assert not rank.at(1, rows=1000)
        rank.saver._copier.buffers.settle()
        before = rank.saver._copier.buffers.size_bytes
        assert rank.at(2, rows=1000)
        assert rank.saver.finish(DEADLINE_S)
        return before, rank.saver._copier.buffers.size_bytes

    for before, after in run.attempt(body, every_steps=2):
        assert before == after >= 8000


def test_a_state_that_cannot_be_saved_is_told_before_it_is_due_and_stops_nothing(run, capfd):
    def body(rank: Rank) -> bool:
        return rank.saver.at_step(1, lambda: {"a": {1}}, dict)

    assert run.attempt(body, 1, every_steps=10) == [False]
    assert "rank 0 has a state that it will not be able to save" in capfd.readouterr().err
