import json
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from harness import journal, settings
from harness.checkpoint import agreement, policy
from harness.checkpoint.audit import verify
from harness.checkpoint.borrowing import borrow
from harness.checkpoint.manifest import Place
from harness.checkpoint.memory import Memory, seen
from harness.checkpoint.slot import label_of
from harness.checkpoint.wire import Ended, Handed, Line
from harness.events import SaveCommitted, SaveFailed, SaveStarted, Tier
from harness.rundir import RunDir
from harness.settings import Record
from tests.harness.checkpoint.hand import handed, hello
from tests.harness.checkpoint.world import DEADLINE_S, Beside, FullDisk, Rank, Run, SlowDisk
from tests.waiting import until

GONE = "rank 1 was gone before its share was copied"


@pytest.fixture
def run(tmp_path) -> Run:
    """A run with its directory; `harness.checkpoint.saver` may serve it."""
    run_dir = RunDir.at(tmp_path)
    run_dir.create()
    settings.write(run_dir.settings, Record("run", ("train.py",), settings.resolve([]), {}, True))
    return Run(run_dir.checkpoints, saver=f"harness-test-{uuid.uuid4().hex}")


def command(run: Run) -> list[str]:
    """What follows `python -m` to start its saver."""
    place = [str(run.root.parent), "--address", run.saver]
    return ["harness.checkpoint.saver", *place, "--with-parent"]


@contextmanager
def saver(run: Run, **environment: str) -> Iterator[psutil.Popen]:
    """The saver's process, listening."""
    environ = {**os.environ, **environment}
    with psutil.Popen([sys.executable, "-m", *command(run)], env=environ) as it:
        try:
            until(lambda: _listens(run.saver), "the saver listens")
            yield it
        finally:
            if it.poll() is None:
                it.kill()


def _listens(address: str) -> bool:
    return f"@{address}\n" in Path("/proc/net/unix").read_text()


@contextmanager
def beside(run: Run) -> Iterator[None]:
    """A saver in threads of this process."""
    it = Beside(run)
    try:
        yield
    finally:
        it.close()


@contextmanager
def ranks(run: Run, attempt: int, step: int, *absent: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Two ranks by hand, which have handed over their shares unless `absent`."""
    arguments = ["-m", "tests.harness.checkpoint.hand", run.run_id, run.saver, str(attempt)]
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                *arguments,
                str(rank),
                str(step),
                *(["absent"] if rank in absent else []),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "handed\n"
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def admitted(process: psutil.Popen) -> int:
    """How many ranks the saver watches by now, beside its parent where it has been given one."""
    pidfds = 0
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            pidfds += "[pidfd]" in str(link.readlink())
    return pidfds - Path(f"/proc/{process.pid}/cmdline").read_bytes().count(b"--with-parent")


def told(run: Run) -> list[tuple[int, Any]]:
    """What the saver wrote into the log, with the attempts."""
    entries = journal.read(RunDir.at(run.root.parent))
    return [(entry.attempt, entry.event) for entry in entries if entry.writer == "saver-0"]


def begun(run: Run, step: int = 0) -> int:
    """An attempt that has chosen to start from nothing, or from a step of the one before."""
    store = run.store()
    attempt = store.claim_attempt()
    store.record_lineage(attempt, attempt - 1 if step else None, step)
    return attempt


def stopped(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_STOPPED


def test_the_saver_waits_for_no_torch():
    code = "import sys, harness.checkpoint.saver; print({'torch', 'numpy'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "set()\n"


@pytest.mark.processes
def test_what_all_ranks_had_handed_over_becomes_durable_though_they_died(run):
    attempt = begun(run)
    with saver(run, HARNESS_POINTS="saver:save.shard:1=stop") as process:
        with ranks(run, attempt, 10):
            until(lambda: stopped(process), "the saver stops")  # in the middle of a shard
        process.send_signal(signal.SIGCONT)
        until(lambda: told(run), "an event of the saver")

    ((of, event),) = told(run)
    assert (of, event.step, type(event)) == (attempt, 10, SaveCommitted)
    (place,) = run.store().places()
    assert sorted(verify(run.store(), place).files)[:2] == [
        "shard-00000-of-00002.safetensors",
        "shard-00001-of-00002.safetensors",
    ]


@pytest.mark.processes
def test_a_save_that_a_death_leaves_incomplete_is_abandoned_at_once(run):
    attempt = begun(run)
    with saver(run) as process, ranks(run, attempt, 10, 1) as processes:
        until(lambda: admitted(process) == 2, "both are admitted")
        processes[1].kill()
        assert processes[0].stdout is not None
        assert (
            processes[0].stdout.readline() == f"Ended(number=1, committed=False, reason='{GONE}')\n"
        )
        until(lambda: told(run), "an event of the saver")

    assert told(run) == [(attempt, SaveFailed(10, Tier.STORAGE, GONE))]
    assert run.store().places() == []


@pytest.mark.processes
def test_a_save_that_outlives_its_attempt_never_becomes_what_the_next_one_did_not_see(run):
    attempt = begun(run)
    with saver(run, HARNESS_POINTS="saver:save.commit:1=stop") as process:
        with ranks(run, attempt, 10):
            until(lambda: stopped(process), "the saver stops")  # all is there but the commit
        assert run.choose() == [None, None]  # the next attempt starts without it
        process.send_signal(signal.SIGCONT)
        until(lambda: told(run), "an event of the saver")

    reason = f"attempt {attempt + 1} has taken over from attempt {attempt}"
    assert told(run) == [(attempt, SaveFailed(10, Tier.STORAGE, reason))]
    assert run.steps() == []


def _hand(run: Run, attempt: int, rank: int, step: int, number: int = 1, keep: int = 3) -> Line:
    line = Line.to(run.saver, DEADLINE_S)
    line.send(msgspec.structs.replace(hello(run.run_id, attempt, rank), keep=keep))
    message, memory = handed(number, attempt, rank, step)
    line.send(message, memory.descriptor)
    return line


def test_a_dead_attempts_save_is_not_in_the_way_of_the_next_ones(run):
    run.disk = stuck = SlowDisk()
    first = begun(run)
    with beside(run):
        dying = [_hand(run, first, rank, 10) for rank in range(2)]
        assert stuck.reached.wait(DEADLINE_S)
        for line in dying:
            line.close()

        run.disk = None
        second = begun(run)
        lines = [_hand(run, second, rank, 20) for rank in range(2)]
        assert [line.receive()[0] for line in lines] == [Ended(1, committed=True)] * 2
        stuck.go_on.set()
        for line in lines:
            line.close()

    assert [place.step for place in run.store().places()] == run.steps() == [20]
    reason = f"attempt {second} has taken over from attempt {first}"
    assert run.log.of(SaveFailed) == [SaveFailed(10, Tier.STORAGE, reason)]


def test_nothing_is_deleted_once_the_ranks_have_gone_for_others_may_be_reading_it(run):
    attempt = begun(run)
    with beside(run):
        for line in [_hand(run, attempt, rank, 10, keep=1) for rank in range(2)]:
            assert line.receive()[0] == Ended(1, committed=True)
            line.close()
        run.disk = slow = SlowDisk()
        later = begun(run, 10)
        dying = [_hand(run, later, rank, 20, keep=1) for rank in range(2)]
        assert slow.reached.wait(DEADLINE_S)
        for line in dying:
            line.close()
        slow.go_on.set()
    assert run.steps() == [10, 20]

    run.disk, last = None, begun(run, 20)
    with beside(run):
        lines = [_hand(run, last, rank, 30, keep=1) for rank in range(2)]
        assert [line.receive()[0] for line in lines] == [Ended(1, committed=True)] * 2
        for line in lines:
            line.close()
    assert run.steps() == [30]


@pytest.mark.processes
def test_a_saver_that_dies_fails_the_save_in_flight_and_the_last_one_is_made_again(run):
    def body(rank: Rank) -> list[bool]:
        rank.at(10, force=True)
        return [rank.saver.finish(DEADLINE_S)]

    with saver(run, HARNESS_POINTS="saver:save.shard:1=kill") as first:
        done = threading.Event()

        def next_one() -> None:
            first.wait(DEADLINE_S)
            with saver(run):
                assert done.wait(DEADLINE_S)

        thread = threading.Thread(target=next_one)
        thread.start()
        try:
            assert run.attempt(body) == [[True]] * 2
        finally:
            done.set()
            thread.join()

    failures = run.log.of(SaveFailed)  # a second one, if a rank meets the dying one once more
    assert failures
    assert all(failure.reason.startswith("the saver has gone (") for failure in failures)
    assert len(run.log.of(SaveStarted)) == len(failures) + 1
    assert run.store().places() == [
        Place(10, 1, len(failures) + 1)
    ]  # what was half written is gone


def test_without_a_saver_saves_wait_for_one_and_training_does_not(run):
    def body(rank: Rank) -> list[bool]:
        started = [rank.at(1), rank.at(2)]
        if rank.rank == 0:
            everyone.enter_context(beside(run))
        together.wait()
        return [*started, rank.at(3, force=True), rank.saver.finish(DEADLINE_S)]

    together = threading.Barrier(2)
    with ExitStack() as everyone:
        assert run.attempt(body, every_steps=1) == [[False, False, True, True]] * 2
    assert run.steps() == [3]
    assert run.log.of(SaveFailed) == []


def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "ABSENT_S", 0.2)
    monkeypatch.setattr(policy, "LAST_ABSENT_S", 0.2)
    monkeypatch.setattr(agreement, "LAST_ABSENT_S", 0.2)


def test_ranks_whose_saver_does_not_come_back_save_by_themselves_from_there_on(
    run, monkeypatch, capfd
):
    _impatient(monkeypatch)

    def body(rank: Rank) -> list[bool]:
        waits, step = not rank.at(1), 1
        while not rank.at(step := step + 1):
            together.wait()
        return [waits, rank.saver.finish(DEADLINE_S), rank.save(1_000_000)]

    together = threading.Barrier(2)
    assert run.attempt(body, every_steps=1) == [[True, True, True]] * 2
    assert run.steps()[-1] == 1_000_000
    assert len(run.steps()) == 2
    assert run.log.of(SaveFailed) == []
    assert "the saver has not been there for 0.2 s: the ranks" in capfd.readouterr().err


@pytest.mark.processes
def test_the_last_save_whose_saver_died_for_good_is_made_by_the_ranks(run, monkeypatch):
    _impatient(monkeypatch)

    def body(rank: Rank) -> list[bool]:
        return [rank.save(10)]

    with saver(run, HARNESS_POINTS="saver:save.shard:1=kill"):
        assert run.attempt(body) == [[True]] * 2
    assert run.steps() == [10]
    assert len(run.store().places()) == 1  # what was half written is gone
    assert not [path for path in run.root.rglob(".*") if path.is_file()]


@pytest.mark.processes
@pytest.mark.parametrize("how", ["asked", "orphaned"])
def test_a_saver_that_leaves_finishes_what_is_whole_and_abandons_the_rest(run, how):
    attempt = begun(run)
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-m', *{command(run)!r}])"
    environ = {**os.environ, "HARNESS_POINTS": "saver:save.shard:1=stop"}
    with psutil.Popen([sys.executable, "-c", code], env=environ) as parent:
        until(lambda: _listens(run.saver), "the saver listens")
        (process,) = parent.children()
        with ranks(run, attempt, 10):
            until(lambda: stopped(process), "the saver stops")
            if how == "asked":
                process.terminate()
            else:
                parent.kill()
            process.send_signal(signal.SIGCONT)
            until(
                lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE,
                "its death",
            )
        parent.kill()
    assert run.steps() == [10]


def test_a_saver_that_leaves_does_not_wait_for_shares(run):
    attempt = begun(run)
    with beside(run):
        line = _hand(run, attempt, 0, 10)
        line.send(Handed(0, Place(5, attempt), None, "older"))  # heard: so was what came before
        line.receive()
    ended, _ = line.receive()
    line.close()
    assert ended == Ended(1, False, "the saver was asked to leave")


# ── who may speak to it, and what it may be told ────────────────────────────────────────────────


def test_a_rank_of_another_run_is_turned_away(run, capfd):
    with beside(run):
        line = Line.to(run.saver, DEADLINE_S)
        line.send(hello("another", 1, 0))
        with pytest.raises(EOFError):
            line.receive()
        line.close()
    assert "is not how a rank of run 'run' begins" in capfd.readouterr().err


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n", b"\3" + bytes(7) + b"abc"])
def test_words_that_are_none_of_ours_end_the_connection_and_nothing_else(run, words):
    with beside(run):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect("\0" + run.saver)
            stranger.sendall(words)
            stranger.settimeout(DEADLINE_S)
            with suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
        attempt = begun(run)
        lines = [_hand(run, attempt, rank, 10) for rank in range(2)]
        assert [line.receive()[0] for line in lines] == [Ended(1, committed=True)] * 2
        for line in lines:
            line.close()


def test_a_shard_outside_of_its_memory_is_not_read(run, capfd):
    attempt = begun(run)
    with beside(run):
        line = Line.to(run.saver, DEADLINE_S)
        line.send(hello(run.run_id, attempt, 0))
        message, memory = handed(1, attempt, 0, 10)
        assert message.share is not None
        (shard,) = message.share.shards
        share = replace(message.share, shards=[replace(shard, begin=4000)])
        line.send(Handed(1, message.place, share), memory.descriptor)
        with pytest.raises(EOFError):
            line.receive()
        line.close()
    assert "rank 0 handed over shards outside of its memory" in capfd.readouterr().err


def test_another_users_end_is_refused(monkeypatch):
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with there, pytest.raises(PermissionError, match="is at the other end, and this is 12345"):
        Line(here, 1.0)


def test_memory_that_may_shrink_under_its_reader_is_not_read():
    memory = Memory(10)
    memory.view[:] = b"0123456789"
    assert bytes(seen(os.dup(memory.descriptor))[:10]) == b"0123456789"
    with pytest.raises(PermissionError):
        os.ftruncate(memory.descriptor, 0)
    other = os.memfd_create("other")
    os.ftruncate(other, 10)
    with pytest.raises(ValueError, match="memory that may shrink"):
        seen(other)


# ── what it costs ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.processes
def test_memory_and_descriptors_stay_flat_over_300_saves(run):
    with saver(run) as process:
        arguments = [
            "-m",
            "tests.harness.checkpoint.many",
            str(run.root),
            run.saver,
            str(process.pid),
        ]
        shown = subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    used = json.loads(shown.stdout)
    assert used.keys() == {"10", "300"}
    for before, after in zip(used["10"], used["300"], strict=True):
        assert after["resident_bytes"] - before["resident_bytes"] < 1_500_000
        assert after["descriptors"] == before["descriptors"]


def test_ranks_hear_of_a_failed_save_though_the_disk_is_too_full_to_say_so(run, monkeypatch):
    def body(rank: Rank) -> bool:
        if rank.rank == 0:
            monkeypatch.setattr(sys, "stderr", full)
        together.wait()
        return rank.save(10)

    together = threading.Barrier(2)
    full = Path("/dev/full").open("w", buffering=1)  # noqa: SIM115 - closing it fails, too
    try:
        with beside(run):
            assert run.attempt(body, files={1: FullDisk(1)}) == [False, False]
    finally:
        with suppress(OSError):
            full.close()


@pytest.mark.processes
def test_a_saver_that_comes_in_the_place_of_one_that_died_is_shown_what_there_is(run):
    def held() -> set[int]:
        with suppress(OSError, EOFError, ValueError):
            loans = list(borrow(run.saver, run.run_id, None))
            labels = [label_of(loan.view) for loan in loans]
            for loan in loans:
                os.close(loan.descriptor)
            return {label.place.step for label in labels if label is not None}
        return set()

    def body(rank: Rank) -> None:
        rank.at(1)
        rank.at(2)
        if rank.rank == 0:
            until(lambda: held() == {1, 2}, "both copies are held")
            savers.pop_all().close()  # it is killed
            savers.enter_context(saver(run))
            until(lambda: held() == {1, 2}, "the next one has them, without another copy")

    with ExitStack() as savers:
        savers.enter_context(saver(run))
        run.attempt(body, every_steps=0, memory_every=1)
