"""Which checkpoints stay: by number, age and step; on the real store, with a kill at every deletion."""

import errno
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import points
from harness.checkpoint.audit import is_known_sound, is_sound, set_aside
from harness.checkpoint.manifest import COMMIT, DamagedError, Place, UnansweredError
from harness.checkpoint.policy import Saved, Spared, is_leftover, surplus
from harness.checkpoint.retention import make_room, retain, sweep
from harness.checkpoint.store import Store
from harness.events import CheckpointDeleted, Rejection
from harness.points import Point
from tests.harness.checkpoint.world import FullDisk, Rank, Run


def saved(step: int, committed_s: float = 0.0, sound: bool = True) -> Saved:
    return Saved(step, 1, f"step-{step}-1", sound, committed_s)


def test_young_ones_stay_by_the_time_between_commits():
    four = [saved(9800, 100.0), saved(9900, 200.0), saved(10000, 300.0), saved(10100, 400.0)]

    assert surplus(four, [], 1, Spared(young_s=250.0)) == four[:1]
    assert surplus(four, [], 1, Spared(young_s=200.0)) == four[:2]
    assert surplus(four, [], 2, Spared(young_s=0.0)) == four[:2]


def test_every_so_many_steps_one_stays_for_ever_if_it_is_sound():
    steps = [saved(step) for step in (800, 900, 1000, 1100, 2100)]
    bad = saved(2000, sound=False)

    kept = {1000, 2100}
    assert [it.step for it in surplus([*steps, bad], [], 1, Spared(every_steps=1000))] == [
        it.step for it in sorted([*steps, bad]) if it.step not in kept
    ]


SPARED = st.builds(Spared, st.floats(0, 300), st.integers(0, 500), st.integers(0, 3))
SAVED = st.builds(
    lambda step, attempt, sound, at: Saved(step, attempt, f"step-{step}-{attempt}", sound, at),
    st.one_of(st.integers(1, 12_000), st.sampled_from([9900, 10000, 99_999, 100_000])),
    st.integers(1, 3),
    st.booleans(),
    st.floats(0, 1000),
)


@given(st.lists(SAVED, max_size=12, unique_by=lambda it: it.name), st.integers(1, 4), SPARED)
def test_no_fewer_sound_ones_stay_than_are_asked_for_whatever_their_names(some, keep, spared):
    gone = set(surplus(some, [], keep, spared))
    sound = sorted(it for it in some if it.sound)
    newest = sound[-keep:]

    assert not gone & set(newest)
    for it in sound[:-keep]:
        young = sound[-1].committed_s - it.committed_s < spared.young_s
        due = spared.every_steps > 0 and it.step % spared.every_steps == 0
        assert (it in gone) == (not young and not due)
    if len(sound) < keep:
        assert gone == set()
    assert set(surplus([it for it in some if it not in gone], [], keep, spared)) == set()


@pytest.mark.parametrize(
    ("step", "attempt", "newest", "committed", "left_over"),
    [
        (10, 1, 2, None, True),
        (10, 2, 2, None, False),
        (10, 2, 2, 9, False),
        (10, 2, 2, 10, True),
        (10, 2, 2, 20, True),
        (10, 3, 2, None, False),
        (10, 1, None, None, False),
    ],
)
def test_what_will_never_get_a_commit_is_left_over(step, attempt, newest, committed, left_over):
    assert is_leftover(step, attempt, newest, committed) == left_over


# ── on the real store ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "checkpoints")


class KilledError(BaseException):
    """Ends the process at this point, as far as the store can see."""


def killed_at(store: Store, number: int, keep: int) -> bool:
    """Retain, and end at the `number`-th point between deletions; False if it ended before."""
    reached = itertools.count()

    def kill() -> None:
        if next(reached) == number:
            raise KilledError

    points.arm(Point.RETENTION, kill)
    try:
        list(retain(store, keep))
    except KilledError:
        return True
    finally:
        points.disarm()
    return False


def sound(store: Store) -> list[int]:
    held = store.inventory()
    return [place.step for place in store.places() if is_sound(store, place, held)]


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_a_kill_between_any_two_deletions_costs_nothing_and_leaves_nothing(
    kind, run, tmp_path, request
):
    """Two of the checkpoints are to stay; one more try for each place where the kill can come."""
    steps = [9800, 9900, 10000, 10100][0 if kind == "file" else 1 :]
    run.commit(*steps, world_size=1, keep=9)
    local = run.store()
    above = f"file://{tmp_path}" if kind == "file" else request.getfixturevalue("s3_url")
    for tried in itertools.count():
        url = f"{above}/{tried}"
        store = Store.open(url, "run")
        for name in local.inventory():
            if name != "run.json":
                store.write(name, [local.read(name)])

        killed = killed_at(store, tried, keep=2)
        assert sound(store)[-2:] == [10000, 10100]
        list(retain(store, 2))

        assert sound(store) == [10000, 10100]
        assert [place.step for place in store.places()] == [10000, 10100]
        if not killed:
            break
    assert tried == 1 + 4 * len(steps[:-2])  # before, and after each of four files of what goes


def test_a_place_that_lost_its_commit_goes_when_the_next_attempt_starts(run):
    run.commit(10, 20, world_size=1)
    (run.directory(10) / COMMIT).unlink()

    sweep(run.store(), 2)

    assert [place.step for place in run.store().places()] == [20]


def test_what_was_set_aside_as_damaged_neither_counts_nor_goes(run):
    run.commit(10, 20, 30, world_size=1, keep=9)
    store = run.store()
    set_aside(store, Place(30, 1), DamagedError(Rejection.CHECKSUM, "a bit"), 2)

    assert [place.step for place in retain(store, 1)] == [10]
    assert [place.step for place in store.places()] == [20, 30]


def test_ages_are_told_by_the_clock_of_the_storage(run):
    run.commit(10, 20, 30, world_size=1, keep=9)
    for step, ago_s in ((10, 7200), (20, 60)):
        at = time.time() - ago_s
        os.utime(run.directory(step) / COMMIT, (at, at))
    store = replace(run.store(), spared=Spared(young_s=3600.0))

    assert [place.step for place in retain(store, 1)] == [10]
    assert run.steps() == [20, 30]


def half_written(run: Run) -> Iterator[Path]:
    return run.root.rglob(".*")


def test_hidden_leftovers_of_the_dead_are_swept_and_those_of_the_living_stay(run):
    run.commit(10, world_size=1)
    old, young = (run.root / f"attempts/.0000{n}.json.{n:032x}" for n in (2, 3))
    dead = run.directory(10) / f".shard.{0:032x}"
    living = run.root / Place(40, 2).name / f".shard.{1:032x}"
    living.parent.mkdir()
    for path in (old, young, dead, living):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))

    sweep(run.store(), 2)

    assert sorted(half_written(run)) == sorted([young, living])
    assert run.store().inventory().keys() == {
        name for name in run.store().inventory() if "/." not in name
    }


@pytest.mark.parametrize(("at_least", "left"), [(0, [10, 20, 30]), (1, [30])])
def test_a_full_storage_is_given_room_only_as_far_as_the_user_allows(run, at_least, left):
    run.commit(10, 20, 30, world_size=1, keep=3)
    disk = FullDisk(10)
    run.spared = Spared(at_least=at_least)

    def body(rank: Rank) -> list[bool]:
        first = rank.save(40)
        steps = run.steps()
        disk.room = 10**9
        return [first, steps == left, rank.save(50)]

    assert run.attempt(body, 1, files={0: disk}, keep=3) == [[False, True, True]]
    assert run.steps() == [*left, 50][-3:]
    told = [event.step for event in run.log.of(CheckpointDeleted)]
    assert told == [step for step in (10, 20, 30) if step not in run.steps()]


def test_room_is_never_made_of_what_is_to_stay_for_its_step(run):
    run.commit(10, 15, 20, 25, world_size=1, keep=9)
    store = replace(run.store(), spared=Spared(young_s=1e9, every_steps=10, at_least=1))

    assert list(retain(store, 1)) == []
    assert [place.step for place in make_room(store, 3)] == [15]


class Unanswering(FullDisk):
    """Fails for whatever is read of one checkpoint."""

    def __init__(self, place: str, error: OSError) -> None:
        super().__init__(1 << 30)
        self.place, self.error = place, error

    def _open(self, path, mode="rb", **options):
        if self.place in path and mode == "rb":
            raise self.error
        return super()._open(path, mode)


@pytest.mark.parametrize("error", [TimeoutError("no answer"), OSError(errno.EIO, "i/o error")])
@pytest.mark.parametrize("step", [10, 100, 120])
def test_what_cannot_be_read_now_is_not_deleted_for_that(run, step, error):
    run.commit(10, 100, 110, 120, world_size=1, keep=9)
    store = replace(run.store(), spared=Spared(every_steps=100), timeout_s=0.1)
    silent = replace(store, files=Unanswering(Place(step, 1).name, error))

    during = {place.step for place in retain(silent, 1)}
    assert during == {10, 110} - {step} - ({110} if step == 120 else set())
    assert [place.step for place in store.places() if place.step not in {10, 110}] == [100, 120]

    list(retain(store, 1))
    assert run.steps() == [100, 120]


def test_a_sweep_takes_nothing_that_is_somebody_else_s(run):
    run.commit(10, world_size=1)
    foreign = [".env", "src/.gitignore", "src/deep/.cache", f"src/.data.{0:032x}", "attempts/.keep"]
    for name in foreign:
        path = run.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
        os.utime(path, (0, 0))
    (run.root / "empty").mkdir()
    (run.root / f"probe-{0:016x}").mkdir()
    for folder in ("empty", f"probe-{0:016x}"):
        os.utime(run.root / folder, (0, 0))

    sweep(run.store(), 2)

    assert all((run.root / name).read_text() == "mine" for name in foreign)
    assert (run.root / "empty").is_dir()
    assert not (run.root / f"probe-{0:016x}").exists(), "it is ours, and nobody tries it any more"


def test_what_cannot_be_read_now_is_not_known_to_be_good(run):
    run.commit(10, world_size=1)
    place = Place(10, 1)
    silent = replace(run.store(), files=Unanswering(place.name, OSError(errno.EIO, "i/o error")))
    silent = replace(silent, timeout_s=0.1)
    assert is_known_sound(run.store(), place)
    assert not is_known_sound(silent, place)
    with pytest.raises(UnansweredError):
        is_sound(silent, place)
