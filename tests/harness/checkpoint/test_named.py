"""Copies in memory that have a name, and savers that outlive their launcher: who uses them, who takes them away."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from contextlib import closing, nullcontext
from pathlib import Path

import psutil
import pytest

from harness import cli, settings
from harness.checkpoint import leftovers, named, slot
from harness.checkpoint import saver as saver_of
from harness.checkpoint.desk import Desk
from harness.checkpoint.leftovers import sweep_run
from harness.checkpoint.manifest import Place
from harness.checkpoint.memory import Memory
from harness.checkpoint.named import Folder, check, sweep
from harness.checkpoint.share import Share
from harness.checkpoint.store import Store
from harness.checkpoint.whereabouts import announce, whereabouts
from harness.checkpoint.wire import Copied, Hello, Line, listener
from harness.events import SaveCommitted, Tier
from harness.replace import replace_file
from harness.rundir import RunDir
from launch.preparation import held
from tests.harness.checkpoint.world import Rank, Run
from tests.waiting import until


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path / "checkpoints", memory_dir=str(tmp_path / "memory"))


def train(run: Run, *steps: int) -> list[int]:
    def body(rank: Rank) -> int:
        for step in steps:
            rank.at(step)
        return 0 if rank.found is None else rank.found.step

    Path(run.memory_dir, f"harness-memory-{run.run_id}").mkdir(parents=True, exist_ok=True)
    return run.attempt(body, every_steps=0, memory_every=1)


def test_without_a_saver_copies_with_a_name_outlive_their_ranks(run):
    assert train(run, 1, 2, 3) == [0, 0]
    assert train(run, 4) == [3, 3]
    assert train(run) == [4, 4]
    kept = [event.step for event in run.log.of(SaveCommitted) if event.tier is Tier.MEMORY]
    assert kept == [1, 2, 3, 4]


def test_a_rank_whose_copies_fail_keeps_no_other_waiting(run, monkeypatch):
    def full(self: Folder, rank: int, slot: int, size_bytes: int) -> Memory:
        if rank == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return make(self, rank, slot, size_bytes)

    make = Folder.make
    monkeypatch.setattr(Folder, "make", full)
    began_s = time.monotonic()
    train(run, 1, 2, 3, 4, 5)
    assert time.monotonic() - began_s < 15
    assert run.log.of(SaveCommitted) == []


def test_where_copies_have_no_room_the_storage_has_the_state(run, monkeypatch, capfd):
    def full(self: Folder, rank: int, slot: int, size_bytes: int) -> Memory:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Folder, "make", full)
    Path(run.memory_dir, f"harness-memory-{run.run_id}").mkdir(parents=True, exist_ok=True)
    assert run.attempt(lambda rank: rank.save(3), memory_every=1) == [True, True]
    assert run.steps() == [3]
    assert "and is taken without a name: OSError: [Errno 28]" in capfd.readouterr().err


def test_a_copy_of_a_run_directory_does_not_take_the_memory_of_the_run(tmp_path):
    original, copy = RunDir.at(tmp_path / "run"), RunDir.at(tmp_path / "copy")
    copy.create()
    original.create()
    folder = Folder.of(str(tmp_path), "copied")
    os.close(folder.claim(original, os.getpid()))
    with pytest.raises(FileExistsError, match=r"holds copies of .*/run, which this run was copied"):
        folder.claim(copy, os.getpid())
    assert folder.is_of(original)
    assert not folder.is_of(copy), "so its saver, and a sweep of it, leave it alone"
    moved = RunDir.at(original.path.rename(tmp_path / "moved"))
    assert folder.is_of(moved)
    os.close(folder.claim(moved, os.getpid()))


def test_a_copy_of_a_run_directory_does_not_ask_the_saver_of_the_run(tmp_path):
    original = RunDir.at(tmp_path / "run")
    original.create()
    announce(original, "harness-saver-somewhere")
    copy = RunDir.at(Path(shutil.copytree(original.path, tmp_path / "copy")))
    assert whereabouts(copy) == ""
    moved = RunDir.at(original.path.rename(tmp_path / "moved"))
    assert whereabouts(moved) == "harness-saver-somewhere"


def test_what_a_rank_was_killed_in_the_middle_of_making_is_taken_away_by_the_next(tmp_path):
    folder = Folder(tmp_path)
    folder.make(0, 1, 4096)
    for name in (".rank-0.slot-0.123", ".rank-0.slot-1.9", ".rank-1.slot-0.123"):
        (tmp_path / name).write_bytes(b"half")
    folder.clear(0)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".rank-1.slot-0.123", "rank-0.slot-1"]


def test_a_copy_that_nobody_had_time_to_seal_is_sealed_by_whoever_finds_it(run):
    train(run, 1, 2)
    for path in Path(run.memory_dir).glob("*/rank-*"):
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(bytes(64))
    assert train(run) == [2, 2]


def test_what_ranks_leave_when_their_run_is_over_is_nothing(run):
    def body(rank: Rank) -> None:
        rank.at(1)
        rank.saver.close(over=True)

    folder = Folder.of(run.memory_dir, run.run_id)
    folder.path.mkdir(parents=True)
    run.attempt(body, every_steps=0, memory_every=1)
    assert list(folder.path.glob("*")) == []
    assert not folder.path.exists()


# ── who may be swept ────────────────────────────────────────────────────────────────────────────


def claimed(tmp_path: Path, run_id: str, launcher: int, ticks: int | None = None) -> Folder:
    """What a run left, of which no process lives but perhaps its launcher."""
    folder = Folder.of(str(tmp_path), run_id)
    os.close(folder.claim(RunDir.at(tmp_path / "run"), launcher))
    if ticks is not None:
        owner = folder.path / "owner.json"
        owner.write_text(json.dumps({**json.loads(owner.read_text()), "start_ticks": ticks}))
    return folder


def test_a_name_with_slashes_is_one_folder_and_leads_nowhere_else():
    assert Folder.of("/dev/shm", "a/../../home").path == Path(
        "/dev/shm/harness-memory-a%2F..%2F..%2Fhome"
    )


def test_a_run_whose_launcher_lives_is_never_swept(tmp_path):
    claimed(tmp_path, "led", os.getpid())
    assert sweep(str(tmp_path)) == []


def test_a_run_of_which_a_rank_lives_is_never_swept(tmp_path):
    folder = claimed(tmp_path, "held", os.getpid(), ticks=1)
    lock = folder.hold()
    assert sweep(str(tmp_path)) == []
    os.close(lock)
    assert sweep(str(tmp_path)) == [folder]
    assert not folder.path.exists()


def test_a_start_sweeps_dead_runs_and_spares_its_own_and_strangers(tmp_path):
    dead, mine = (claimed(tmp_path, name, os.getpid(), ticks=1) for name in ("dead", "mine"))
    (tmp_path / "other").mkdir()
    assert sweep(str(tmp_path), mine) == [dead]
    assert {path.name for path in tmp_path.iterdir()} == {mine.path.name, "other"}


def test_a_run_that_is_just_beginning_is_never_swept(tmp_path, monkeypatch):
    swept = []

    def late(path: Path, content: bytes) -> None:
        swept.append(sweep(str(tmp_path)))
        replace_file(path, content)

    monkeypatch.setattr(named, "replace_file", late)
    folder = claimed(tmp_path, "new", os.getpid())
    assert swept == [[]]
    assert (folder.path / "owner.json").is_file()


def test_a_claim_that_met_a_sweep_makes_the_folder_anew(tmp_path, monkeypatch):
    folder, hold, locks = Folder.of(str(tmp_path), "again"), Folder.hold, []

    def swept(self: Folder) -> int:
        locks.append(hold(self))
        if len(locks) == 1:
            self.remove()
        return locks[-1]

    monkeypatch.setattr(Folder, "hold", swept)
    lock = folder.claim(RunDir.at(tmp_path / "run"), os.getpid())
    assert locks[1:] == [lock]
    assert os.fstat(lock).st_ino == folder.path.stat().st_ino
    assert (folder.path / "owner.json").is_file()
    os.close(lock)


def test_a_run_of_which_nobody_can_tell_whether_it_lives_is_never_swept(tmp_path):
    folder = claimed(tmp_path, "strange", os.getpid(), ticks=1)
    (tmp_path / "run").symlink_to(tmp_path / "run")  # cannot be opened, and is there
    assert sweep(str(tmp_path)) == []
    (tmp_path / "run").unlink()
    assert sweep(str(tmp_path)) == [folder]


def test_a_run_of_another_container_is_never_swept(tmp_path, monkeypatch):
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(named, "_processes", lambda: "pid:[4026599999]")
        folder = claimed(tmp_path, "run", os.getpid(), ticks=1)
    assert sweep(str(tmp_path)) == []
    assert claimed(tmp_path, "run", os.getpid(), ticks=1) == folder
    assert sweep(str(tmp_path)) == [folder]


def test_what_is_no_folder_is_no_runs(tmp_path):
    (tmp_path / "harness-memory-file").write_bytes(b"mine")
    assert sweep(str(tmp_path)) == []
    assert (tmp_path / "harness-memory-file").read_bytes() == b"mine"


@pytest.mark.parametrize("place", ["typo", "file"])
def test_a_place_for_copies_is_there_or_refused(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=f"{place}' is no folder that can be written to: make it"):
        check(str(tmp_path / place))
    check(str(tmp_path))
    check("")


# ── savers that outlive their launcher ──────────────────────────────────────────────────────────

LAUNCHER = """
import sys
from pathlib import Path
from launch import companions
run_dir, linger_s = Path(sys.argv[1]), float(sys.argv[2])
address = companions.saver_address()
with (run_dir / "log").open("wb") as log:
    command = companions.saver(run_dir, address, linger_s)
    saver = companions.start("saver", command, log, outlives=True)
print(saver.process.pid, address, flush=True)
sys.stdin.read()
"""


@pytest.mark.processes
@pytest.mark.parametrize("is_led", [False, True])
def test_a_saver_that_lingered_takes_copies_with_a_name_away_but_for_another_launcher(
    tmp_path, is_led
):
    folder = claimed(tmp_path, "run", os.getpid(), ticks=1)
    with held(RunDir.at(tmp_path / "run")) if is_led else nullcontext():
        _, saver = abandoned(tmp_path / "run", 0.2, str(tmp_path))
        until(lambda: not saver.is_running(), "the saver has gone")
        assert folder.path.exists() is is_led


SHARE = Share(0, [], "{}", "{}", "layout")


def abandoned(
    tmp_path: Path, linger_s: float, memory_dir: str = ""
) -> tuple[RunDir, psutil.Process]:
    """A saver that holds a copy, and whose launcher was killed."""
    run_dir = RunDir.at(tmp_path)
    run_dir.create()
    asked = [("flag", {"memory_dir": memory_dir})]
    record = settings.Record("run", ("x",), settings.resolve(asked), {})
    settings.write(run_dir.settings, record)
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path), str(linger_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        pid, address = launcher.stdout.readline().split()
        until(lambda: whereabouts(run_dir) == address.decode(), "the saver listens")
        line = Line.to(address.decode(), 10.0)
        line.send(Hello("run", 1, 0, 1, 3, 10.0, {}, keeps=True))
        memory = Memory(128 << 10)
        slot.put_label(memory.view, "run", Place(7, 1), 1, slot.DATA, SHARE, {})
        line.send(Copied(0), memory.descriptor)
        log = run_dir.event_file("saver-0")
        until(lambda: b"SaveCommitted" in log.read_bytes(), "the copy is held")
        line.close()
        launcher.kill()
    return run_dir, psutil.Process(int(pid))


@pytest.mark.processes
def test_a_saver_outlives_its_launcher_until_it_is_swept(tmp_path, capsys):
    run_dir, saver = abandoned(tmp_path, 600.0)
    assert saver.is_running()
    with held(run_dir):
        assert sweep_run(run_dir) == "a launcher is at work in it; left alone"
    assert cli.main(["sweep", str(run_dir.path)]) == 0
    assert capsys.readouterr().out == (
        f"{run_dir.path}: taken away: the saver that outlived its launcher\n"
    )
    until(lambda: not saver.is_running(), "the saver has gone")
    assert sweep_run(run_dir) == "nothing was left of it"


@pytest.mark.processes
def test_a_saver_that_does_not_end_is_named_and_keeps_no_other_run_from_being_swept(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(leftovers, "_GONE_WITHIN_S", 0.2)
    monkeypatch.setattr(leftovers, "SHARED", str(tmp_path))
    other = RunDir.at(tmp_path / "other")
    other.create()
    settings.write(other.settings, settings.Record("other", ("x",), settings.resolve([]), {}))
    run_dir, saver = abandoned(tmp_path / "run", 600.0)
    monkeypatch.setattr(leftovers, "_savers", lambda: [whereabouts(run_dir)])
    saver.suspend()
    try:
        assert cli.main(["sweep", str(run_dir.path), str(other.path), "--all"]) == 1
    finally:
        saver.kill()
    stuck = (
        f"its saver, process {saver.pid}, has not ended in 0.2 s and holds memory: it may be saving"
    )
    said = capsys.readouterr()
    assert said.err == f"harness: {stuck} that; wait, or end it by SIGKILL\n"
    assert said.out.splitlines() == [
        f"{other.path}: nothing was left of it",
        f"left alone: {run_dir.path}: {stuck} that; wait, or end it by SIGKILL",
    ]
    until(lambda: not saver.is_running(), "the saver has gone")


@pytest.mark.processes
def test_every_dead_run_is_swept_at_once(tmp_path, capsys, monkeypatch):
    (tmp_path / "shm").mkdir()
    left = claimed(tmp_path / "shm", "dead", os.getpid(), ticks=1)
    monkeypatch.setattr(leftovers, "SHARED", str(tmp_path / "shm"))
    run_dir, saver = abandoned(tmp_path / "run", 600.0)
    address = whereabouts(run_dir)
    assert address in leftovers._savers()
    monkeypatch.setattr(leftovers, "_savers", lambda: [address])  # others' are not ours to end
    assert cli.main(["sweep", "--all"]) == 0
    assert capsys.readouterr().out == (
        f"taken away: the saver of {run_dir.path}\ntaken away: {left.path}\n"
    )
    until(lambda: not saver.is_running(), "the saver has gone")


@pytest.mark.processes
def test_a_saver_that_nobody_needs_again_goes_by_itself(tmp_path):
    began_s = time.monotonic()
    _, saver = abandoned(tmp_path, 0.2)
    until(lambda: not saver.is_running(), "the saver has gone")
    assert time.monotonic() - began_s >= 0.2


def unopened() -> Store:
    raise AssertionError("nothing is stored here")


@pytest.mark.parametrize("linger_s", [1e12, float("inf")])
def test_a_saver_may_be_asked_to_linger_for_longer_than_the_kernel_waits(linger_s):
    desk, memory = Desk("run", unopened, lambda event, attempt: None), Memory(128 << 10)
    slot.put_label(memory.view, "run", Place(7, 1), 1, slot.DATA, SHARE, {})
    desk.shelf.put(0, 0, os.dup(memory.descriptor), 1)
    os.eventfd_write(desk.relieved, 1)
    leave = saver_of._asked_to_leave()
    with closing(listener(f"harness-test-{uuid.uuid4().hex}")) as listening:
        assert saver_of._linger(desk, listening, leave, linger_s, None)


def test_a_launcher_that_has_ended_and_is_not_reaped_does_not_live(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as launcher:
        folder = claimed(tmp_path, "ended", launcher.pid)
        until(lambda: psutil.Process(launcher.pid).status() == "zombie", "it has ended")
        assert sweep(str(tmp_path)) == [folder]
