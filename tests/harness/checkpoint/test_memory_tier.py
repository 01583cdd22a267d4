"""The memory tier between attempts: ranks as threads, a saver that stays, real memory."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import torch

from harness.checkpoint import borrowing, room, slot
from harness.checkpoint.lineage import Departure, was_committed
from harness.checkpoint.manifest import Place
from harness.checkpoint.memory import Memory
from harness.checkpoint.share import Share
from harness.checkpoint.shelf import Shelf
from harness.checkpoint.succession import relieve, take_over
from harness.checkpoint.wire import listener
from harness.events import (
    CheckpointRejected,
    Rejection,
    SaveCommitted,
    SaveStarted,
    SaveUnblocked,
    Tier,
)
from tests.harness.checkpoint.world import DEADLINE_S, Beside, Rank, Run, own, shared
from tests.waiting import until


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path / "checkpoints")


@contextmanager
def beside(run: Run) -> Iterator[Beside]:
    saver = Beside(run)
    try:
        yield saver
    finally:
        saver.close()


def train(run: Run, saver: Beside, *steps: int, world_size: int = 2) -> list[int]:
    """An attempt that keeps these steps in memory and ends; the step each rank went on from."""

    def body(rank: Rank) -> int:
        for step in steps:
            rank.at(step)
        return 0 if rank.found is None else rank.found.step

    began = run.attempt(body, world_size, every_steps=0, memory_every=1)
    for rank in range(world_size if steps else 0):
        last = set(steps[-2:])
        until(lambda: last <= sealed(saver, rank), f"rank {rank}'s copies are sealed")  # noqa: B023
    return began


def steps_held(saver: Beside, rank: int) -> list[int]:
    """The step that each slot of a rank says it holds."""
    labels = (slot.label_of(held.view) for _, held in saver.desk.shelf.lend(rank, 10.0))
    return sorted(label.place.step for label in labels if label is not None)


def sealed(saver: Beside, rank: int) -> set[int]:
    """The steps of which the saver holds a copy that it has counted."""
    kept = (slot.kept(view) for view in memories(saver, rank).values())
    return {one.label.place.step for one in kept if one is not None}


def memories(saver: Beside, rank: int) -> dict[int, memoryview]:
    """What the saver holds of a rank, by the step that lies in it; 0 for nothing."""
    lent = saver.desk.shelf.lend(rank, 10.0)
    found = ((slot.label_of(held.view), held.view) for _, held in lent)
    return {0 if label is None else label.place.step: view for label, view in found}


def writable(saver: Beside, rank: int, step: int) -> memoryview:
    """The memory of that copy, as its rank had it."""
    for _, held in saver.desk.shelf.lend(rank, 10.0):
        label = slot.label_of(held.view)
        if label is not None and label.place.step == step:
            return Memory.of(os.dup(held.descriptor)).view
    raise AssertionError(f"no copy of step {step}")


def committed(run: Run, tier: Tier) -> list[int]:
    return [event.step for event in run.log.of(SaveCommitted) if event.tier is tier]


def test_the_next_attempt_goes_on_from_the_newest_copy_that_all_ranks_have(run):
    with beside(run) as saver:
        assert train(run, saver, 1, 2, 3) == [0, 0]
        first, second = run.attempt(lambda rank: rank.found, memory_every=1)

    assert (first.step, first.saved_by, first.world_size) == (3, 1, 2)
    assert torch.equal(first.shared["model"]["weight"], torch.full((8, 4), 3.0))
    assert torch.equal(second.shared["model"]["weight"], torch.full((8, 4), 3.0))
    assert (first.own["rank"], second.own["rank"]) == (0, 1)
    assert committed(run, Tier.STORAGE) == []
    assert committed(run, Tier.MEMORY)[-1:] == [3]
    assert run.log.of(SaveStarted) == [SaveStarted(step, Tier.MEMORY) for step in (1, 2, 3)]
    assert run.log.of(SaveUnblocked) == [SaveUnblocked(step, Tier.MEMORY) for step in (1, 2, 3)]


def test_a_copy_that_was_torn_is_not_used_and_the_one_before_it_is(run):
    with beside(run) as saver:
        train(run, saver, 1, 2, 3)
        slot.tear(writable(saver, 1, 3))
        assert train(run, saver) == [2, 2]
    assert run.log.of(CheckpointRejected) == []


def test_a_copy_whose_bytes_changed_after_the_seal_is_walked_past_and_that_is_said(run, capfd):
    with beside(run) as saver:
        train(run, saver, 1, 2, 3)
        memory = writable(saver, 1, 3)
        memory[slot.DATA + 300] ^= 1
        assert train(run, saver) == [2, 2]

    (walked,) = run.log.of(CheckpointRejected)
    assert (walked.step, walked.saved_by, walked.rejection) == (3, 1, Rejection.CHECKSUM)
    assert walked.reason.startswith("in memory, rank 1: shard-00001-of-00002.safetensors has check")
    assert "walked past step-00000003-1 (checksum)" in capfd.readouterr().err


def test_a_run_that_goes_on_without_copies_in_memory_holds_none(run):
    with beside(run) as saver:
        train(run, saver, 1, 2)
        assert not saver.desk.shelf.is_empty
        run.commit(5)
        assert saver.desk.shelf.is_empty


def test_what_is_newer_wins_in_whichever_tier_it_is(run):
    with beside(run) as saver:
        train(run, saver, 1)
        run.commit(5, memory_every=100)
        train(run, saver, 6)
        assert train(run, saver) == [6, 6]
        run.commit(7, memory_every=100)
        assert train(run, saver) == [7, 7]


def test_a_copy_off_the_chain_is_never_used(run):
    with beside(run) as saver:
        train(run, saver, 1, 2, 3)
        fresh = run.attempt(lambda rank: rank.found, resume="fresh", memory_every=100)
        assert fresh == [None, None]
        assert memories(saver, 0).keys() == {2, 3}
        assert train(run, saver) == [0, 0]


def test_another_number_of_ranks_finds_the_storage(run):
    with beside(run) as saver:
        run.commit(5)
        train(run, saver, 6, 7)
        assert train(run, saver, world_size=1) == [5]
        assert train(run, saver, 6, world_size=3) == [5, 5, 5]
        assert train(run, saver, world_size=3) == [6, 6, 6]


def test_an_attempt_goes_on_in_the_same_memory_and_spares_what_it_resumed_from(run):
    with beside(run) as saver:
        train(run, saver, 1, 2, 3, 4)
        slot.tear(writable(saver, 0, 4))
        assert train(run, saver, 5) == [3, 3]
        assert memories(saver, 1).keys() == {3, 5}
        assert train(run, saver) == [5, 5]
        assert len(saver.desk.shelf.lend(None, 1.0)) == 4


def test_commits_of_an_attempt_that_descends_from_memory_count(run):
    with beside(run) as saver:
        train(run, saver, 1, 2, 3)
        run.commit(4, memory_every=100)
        assert run.store().departures() == {
            1: Departure(None, 0),
            2: Departure(1, 3, memory=True),
        }
    assert [found.step for found in run.choose()] == [4, 4]


def test_a_run_that_was_in_memory_alone_begins_anew_where_that_is_gone(run):
    with beside(run) as saver:
        train(run, saver, 1, 2)
        train(run, saver, 3)
    assert run.choose() == [None, None]
    assert not was_committed(run.store().departures())


def test_a_save_to_the_storage_is_a_copy_in_memory_too(run):
    def body(rank: Rank) -> bool:
        for step in (1, 2, 3):
            rank.at(step)
        durable = rank.saver.finish(DEADLINE_S)
        rank.at(4)
        return durable

    with beside(run) as saver:
        assert run.attempt(body, every_steps=3, memory_every=4) == [True, True]
        assert train(run, saver) == [4, 4]
    assert committed(run, Tier.STORAGE) == [3]
    assert set(committed(run, Tier.MEMORY)) == {3, 4}
    assert run.log.of(SaveStarted) == [
        SaveStarted(3, Tier.MEMORY),
        SaveStarted(3, Tier.STORAGE),
        SaveStarted(4, Tier.MEMORY),
    ]


def test_a_last_state_that_was_copied_twice_is_resumed_from_by_each_rank_as_its_own(run):
    def body(rank: Rank) -> None:
        rank.at(3)
        rank.at(3, force=True)
        rank.saver.finish(DEADLINE_S)

    with beside(run) as saver:
        run.attempt(body, every_steps=0, memory_every=1)
        for rank in (0, 1):
            until(lambda: steps_held(saver, rank) == [3, 3], "both slots hold it")  # noqa: B023
        found = run.attempt(lambda rank: (rank.found.step, rank.found.own["rank"]), memory_every=1)
    assert found == [(3, 0), (3, 1)]


def test_a_saver_that_does_not_answer_is_not_waited_for(run, monkeypatch, capfd):
    monkeypatch.setattr(borrowing, "_ANSWERS_WITHIN_S", 0.2)
    run.attempt(lambda rank: rank.save(1))
    run.saver = "harness-test-saver-that-hangs"
    with listener(run.saver):
        found = run.attempt(lambda rank: rank.found.step, memory_every=1)
    assert found == [1, 1]
    assert "cannot be had: TimeoutError: the saver does not answer" in capfd.readouterr().err


def test_a_later_saver_takes_over_what_an_earlier_one_holds(run):
    with beside(run) as earlier:
        train(run, earlier, 1, 2, 3)
        run.saver = ""
        with beside(run) as later:
            relieve(take_over(later.desk.shelf, earlier.address, later.address, run.run_id))
            earlier.desk.shelf.clear()
            assert train(run, later) == [3, 3]


def test_what_a_dead_rank_handed_over_late_takes_no_newer_place():
    shelf = Shelf(lambda event, attempt: None)
    old, new = labelled(), labelled()
    shelf.put(0, 0, os.dup(new.descriptor), 2)
    shelf.put(0, 0, os.dup(old.descriptor), 1)
    ((_, held),) = shelf.lend(0, 1.0)
    assert slot.label_of(held.view) == slot.label_of(new.view) != slot.label_of(old.view)


@pytest.mark.parametrize(
    ("left_bytes", "slots", "line"),
    [
        (250_000, 1, "harness: copies in memory have one slot instead of two, for the state takes"),
        (1000, 0, "harness: no copies are kept in memory, for the state takes"),
    ],
)
def test_little_memory_makes_one_slot_or_none(run, monkeypatch, capfd, left_bytes, slots, line):
    monkeypatch.setattr(room, "left_bytes", lambda: left_bytes)

    def body(rank: Rank) -> None:
        state, mine = shared(0.0), own(rank.rank, 0.0)
        rank.saver.prepare(lambda: state, lambda: mine, fresh=False)
        for step in (1, 2, 3):
            rank.at(step)

    with beside(run) as saver:
        run.attempt(body, every_steps=0, memory_every=1)
        if slots:
            until(
                lambda: all(memories(saver, rank).keys() == {3} for rank in (0, 1)), "one is held"
            )
        assert train(run, saver) == ([3, 3] if slots else [0, 0])
    assert len(run.log.of(SaveStarted)) == 3 * slots
    told = [said for said in capfd.readouterr().err.splitlines() if "in memory" in said]
    assert [said[: len(line)] for said in told] == [line]


def test_a_state_is_looked_at_once_before_training_goes_on(run):
    looks: list[int] = []

    def body(rank: Rank) -> None:
        state, mine = shared(0.0), own(rank.rank, 0.0)

        def looked_at() -> object:
            looks.append(rank.rank)
            return state

        rank.saver.prepare(looked_at, lambda: mine, fresh=False)

    with beside(run):
        run.attempt(body, every_steps=0, memory_every=1)
    assert sorted(looks) == [0, 1]


@pytest.mark.parametrize(("left_bytes", "slots"), [(200_000, {1}), (0, set())])
def test_what_there_is_no_room_for_any_more_is_let_go_of(run, monkeypatch, left_bytes, slots):
    def body(rank: Rank) -> None:
        state, mine = shared(0.0), own(rank.rank, 0.0)
        rank.saver.prepare(lambda: state, lambda: mine, fresh=False)

    with beside(run) as saver:
        train(run, saver, 1, 2)
        assert held(saver) == {(0, 0), (0, 1), (1, 0), (1, 1)}
        monkeypatch.setattr(room, "left_bytes", lambda: left_bytes - held_bytes(saver))
        run.attempt(body, every_steps=0, memory_every=1)
        kept = {(rank, number) for rank in (0, 1) for number in slots}
        until(lambda: held(saver) == kept, "the rest is let go of")
        assert train(run, saver, 3) == ([2, 2] if slots else [0, 0])
        files = {os.fstat(one.descriptor).st_ino for _, one in saver.desk.shelf.lend(None, 10.0)}
        assert len(files) == len(held(saver))  # no two slots are the same memory


def held(saver: Beside) -> set[tuple[int, int]]:
    """Rank and slot of each memory that the saver holds."""
    return {key for key, _ in saver.desk.shelf.lend(None, 10.0)}


def held_bytes(saver: Beside) -> int:
    return sum(len(one.view) for _, one in saver.desk.shelf.lend(None, 10.0))


def test_ranks_do_not_wait_for_a_word_on_memory_that_rank_0_cannot_give(run, monkeypatch, capfd):
    def unreadable() -> int:
        raise PermissionError(13, "Permission denied", "/proc/meminfo")

    def body(rank: Rank) -> None:
        state, mine = shared(0.0), own(rank.rank, 0.0)
        rank.saver.prepare(lambda: state, lambda: mine, fresh=False)
        rank.at(1)

    monkeypatch.setattr(room, "left_bytes", unreadable)
    began_s = time.monotonic()
    with beside(run):
        run.attempt(body, every_steps=0, memory_every=1)
    assert time.monotonic() - began_s < DEADLINE_S
    assert run.log.of(SaveStarted) == []
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("harness: rank 0 keeps no copies in memory: PermissionError")


# ── what a slot says of itself ──────────────────────────────────────────────────────────────────

SHARE = Share(1, [], "", "{}", "layout")


def labelled(size: int = 128 << 10) -> Memory:
    memory = Memory(size)
    slot.put_label(memory.view, "run", Place(7, 2), 3, slot.DATA, SHARE, {"torch": "2"})
    return memory


def test_a_slot_says_which_state_it_holds_once_it_is_labelled():
    memory = labelled()
    label = slot.label_of(memory.view)
    assert label is not None
    assert (label.run_id, label.place, label.rank, label.world_size) == ("run", Place(7, 2), 1, 3)
    assert slot.about(memory.view, label) == slot.About(SHARE, {"torch": "2"})
    assert slot.kept(memory.view) is None  # nobody has counted it yet


@pytest.mark.parametrize("at", [0, 8, 20, slot.DATA + 3])
def test_a_label_of_which_a_byte_is_wrong_is_none(at):
    memory = labelled()
    memory.view[at] ^= 1
    assert slot.seal(memory.view, memory.descriptor) is None
    assert slot.kept(memory.view) is None


def test_what_another_version_wrote_is_no_copy(monkeypatch):
    memory = Memory(128 << 10)
    monkeypatch.setattr(slot, "_described", lambda *_: msgspec.msgpack.encode({"parts": 3}))
    slot.put_label(memory.view, "run", Place(7, 2), 3, slot.DATA, SHARE, {})
    label = slot.label_of(memory.view)
    assert label is not None
    assert slot.about(memory.view, label) is None
    assert slot.seal(memory.view, memory.descriptor) is None


def test_a_seal_belongs_to_one_copy_alone():
    memory = labelled()
    assert slot.seal(memory.view, memory.descriptor) == slot.label_of(memory.view)
    assert slot.kept(memory.view) is not None
    slot.tear(memory.view)
    assert slot.label_of(memory.view) is None
    slot.put_label(memory.view, "run", Place(7, 2), 3, slot.DATA, SHARE, {"torch": "2"})
    assert slot.kept(memory.view) is None


def test_copies_of_another_number_of_ranks_are_said_not_to_be_used(run, capfd):
    with beside(run) as saver:
        train(run, saver, 1)
        assert train(run, saver, world_size=1) == [0]
    assert "copies in memory are those of 2 ranks, and there are 1 now" in capfd.readouterr().err
