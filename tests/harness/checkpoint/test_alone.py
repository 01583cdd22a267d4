"""Saves that the ranks carry among themselves, without a saver."""

import errno
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.distributed import HashStore

from harness.checkpoint import alone, upkeep
from harness.checkpoint.messages import Channel
from harness.checkpoint.store import Store
from harness.checkpoint.tell import Spokesman
from harness.checkpoint.writer import Flight, Verdict
from harness.events import SaveCommitted, SaveFailed
from tests.harness.checkpoint.hand import handed
from tests.harness.checkpoint.world import DEADLINE_S, FullDisk, Run, SlowDisk

A_WHILE_S = 0.5
"""For what must not come."""


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "checkpoints")


class FullBeside(FullDisk):
    """Full, and found to be once someone writes to the slow one."""

    def __init__(self, slow: SlowDisk) -> None:
        super().__init__(0)
        self._slow = slow

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "wb" and "/attempts/" not in path:
            assert self._slow.reached.wait(DEADLINE_S)
        return super()._open(path, mode, **options)


def test_a_save_that_failed_is_gone_though_another_rank_was_still_writing(run, monkeypatch):
    slow, discarded, failed = SlowDisk(), threading.Event(), threading.Event()
    early: list[bool] = []
    discard = upkeep.discard

    def note(store, place):
        early.append(not slow.go_on.is_set())
        discarded.set()
        discard(store, place)

    def release():
        assert slow.reached.wait(DEADLINE_S)
        failed.wait(DEADLINE_S)
        discarded.wait(A_WHILE_S)  # it must not come before the slow rank has ended
        slow.go_on.set()

    def write(event):
        run.log.events.append(event)
        if isinstance(event, SaveFailed):
            failed.set()

    monkeypatch.setattr(alone, "discard", note)
    monkeypatch.setattr(run.log, "write", write)
    releasing = threading.Thread(target=release)
    releasing.start()

    saved = run.attempt(lambda rank: rank.save(10), 3, files={1: FullBeside(slow), 2: slow})
    releasing.join()

    assert (saved, early) == ([False] * 3, [False])
    assert sorted(path.name for path in run.root.iterdir()) == ["attempts", "run.json"]
    assert run.log.of(SaveCommitted) == []


def test_a_rank_that_still_writes_for_a_save_that_failed_stops_at_the_next_portion(
    run, monkeypatch
):
    slow = SlowDisk()
    written: list[int] = []
    write = Store.write

    def counted(store, name, chunks):
        def seen() -> Iterator[memoryview]:
            for chunk in chunks:
                if store.files is slow:
                    written.append(len(chunk))
                yield chunk

        return write(store, name, seen())

    def release():
        assert slow.reached.wait(DEADLINE_S)
        assert announced.wait(DEADLINE_S)
        slow.go_on.set()

    announced = threading.Event()
    announce = alone.Alone._announce

    def tell(*told):
        announce(*told)
        announced.set()

    monkeypatch.setattr(alone.Alone, "_announce", tell)
    monkeypatch.setattr(Store, "write", counted)
    releasing = threading.Thread(target=release)
    releasing.start()

    saved = run.attempt(lambda rank: rank.save(10), 3, files={1: FullBeside(slow), 2: slow})
    releasing.join()

    assert saved == [False] * 3
    assert written == []


class Outrun:
    """A lock that its first taker gets after all of `first` has come before."""

    def __init__(self, first: Callable[[], None]) -> None:
        self._firsts = [first]
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        while self._firsts:
            self._firsts.pop()()
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("is_full", [False, True])
def test_a_save_that_commits_while_it_is_given_up_ends_once(run, monkeypatch, is_full):
    store = run.store()
    attempt = store.claim_attempt()
    store.record_lineage(attempt, None, 0)
    message, memory = handed(0, attempt, 0, 10)
    channel, spokesman = Channel(HashStore(), ""), Spokesman(run.log, 0)
    carrier = alone.Alone(store, channel, 0, 1, spokesman, {}, 3, DEADLINE_S)
    flight = Flight(0, message.place, message.share, memory, None, 0.0)
    verdicts: list[Verdict] = []

    def commit():
        verdicts.append(carrier.carry(flight))

    if is_full:
        monkeypatch.setattr(Store, "create", no_space)
    monkeypatch.setattr(carrier, "_deciding", Outrun(commit))
    carrier.give_up(flight, "it takes too long")
    assert [verdict.committed for verdict in verdicts] == [not is_full]
    assert [type(event) for event in run.log.events] == [SaveFailed if is_full else SaveCommitted]


def no_space(*_: object) -> bool:
    raise OSError(errno.ENOSPC, "no space left on device")
