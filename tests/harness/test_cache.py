from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from harness import cache
from harness.cache import Following
from harness.events import Entry, RestoreStarted, StepFinished
from harness.fold import Fold
from harness.journal import read
from harness.lines import encode
from harness.rundir import RunDir
from tests.harness.runs import FakeClock, S, walk
from tests.harness.test_journal import EVER, header, said, split_by_writer, write


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir.at(tmp_path / "run")


def lay_down(run_dir: RunDir, entries: list[Entry]) -> None:
    writers = sorted({entry.writer for entry in entries})
    write(run_dir, **{writer: header(writer) for writer in writers})
    append(run_dir, entries)


def append(run_dir: RunDir, entries: list[Entry]) -> None:
    for entry in entries:
        with run_dir.event_file(entry.writer).open("ab") as file:
            file.write(encode(entry))


def straight(run_dir: RunDir) -> Fold:
    fold = Fold()
    for entry in read(run_dir):
        fold.feed(entry)
    return fold


@pytest.mark.parametrize("seed", range(6))
def test_going_on_from_the_cache_gives_what_folding_from_the_start_gives(
    seed: int, run_dir: RunDir
):
    entries = split_by_writer(walk(seed, 120))
    lay_down(run_dir, entries[:1])
    for place in range(0, 120, 17):
        append(run_dir, entries[max(1, place) : place + 17])
        with Following(run_dir) as following:
            # half a second behind the horizon: some entries wait, and go through the cache so
            following.poll(entries[min(place + 16, 119)].at_ns + 500_000_000)
    with Following(run_dir) as following:
        following.poll(EVER)
        assert following.fold == straight(run_dir)
        assert following.impossible == 0


def test_a_reader_that_resumes_takes_in_the_tail_alone(run_dir: RunDir):
    entries = split_by_writer(walk(3, 100))
    lay_down(run_dir, entries[:90])
    with Following(run_dir) as following:
        assert following.poll(EVER) == 90
    append(run_dir, entries[90:])
    with Following(run_dir) as following:
        assert following.poll(EVER) == 10
        assert following.poll(EVER) == 0


def flip_a_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "damage", [flip_a_bit, lambda c: c[:-1], lambda _: b"", lambda _: b"rubbish" * 9]
)
def test_a_damaged_cache_is_dropped_and_made_again(
    damage: Callable[[bytes], bytes], run_dir: RunDir
):
    lay_down(run_dir, split_by_writer(walk(4, 60)))
    with Following(run_dir) as following:
        following.poll(EVER)
    run_dir.fold.write_bytes(damage(run_dir.fold.read_bytes()))
    with Following(run_dir) as following:
        assert following.poll(EVER) == 60
        assert following.fold == straight(run_dir)


def test_no_flipped_bit_is_taken_for_a_count(run_dir: RunDir):
    lay_down(run_dir, split_by_writer(walk(4, 60)))
    with Following(run_dir) as following:
        following.poll(EVER)
    good = run_dir.fold.read_bytes()
    for place in range(0, len(good), 23):
        run_dir.fold.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert Following(run_dir).fold == Fold()


def test_a_cache_made_by_other_code_is_dropped(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch):
    lay_down(run_dir, split_by_writer(walk(5, 60)))
    with Following(run_dir) as following:
        following.poll(EVER)
    monkeypatch.setattr(cache, "_code", lambda: "another version")
    assert Following(run_dir).poll(EVER) == 60


def test_a_cache_of_another_log_is_dropped(run_dir: RunDir):
    lay_down(run_dir, split_by_writer(walk(6, 60)))
    with Following(run_dir) as following:
        following.poll(EVER)
    others = split_by_writer(walk(7, 60))
    lay_down(run_dir, others)
    with Following(run_dir) as following:
        following.poll(EVER)
        assert following.fold == straight(run_dir)


def test_the_code_that_makes_the_fold_is_all_in_the_name_of_the_cache():
    package = Path(cache.__file__).parent
    imported = {
        line.split()[1].removeprefix("harness.")
        for name in ("fold", "lives", "account", "journal")
        for line in (package / f"{name}.py").read_text().splitlines()
        if line.startswith("from harness.")
    }
    # what is not in it: how events are written, where files are
    assert imported - set(cache.CODE.split()) == {"recorder", "rundir"}


def test_a_run_directory_that_cannot_be_written_is_read_all_the_same(run_dir: RunDir):
    lay_down(run_dir, split_by_writer(walk(8, 60)))
    run_dir.cache.rmdir()
    run_dir.cache.write_text("a file stands where the folder was")
    with Following(run_dir) as following:
        assert following.poll(EVER) == 60


def test_an_impossible_entry_is_left_out_and_counted_where_people_only_watch(run_dir: RunDir):
    entries = [entry for entry in split_by_writer(walk(9, 60)) if entry.attempt <= 0]
    lay_down(run_dir, entries)
    last = entries[-1]
    append(run_dir, [Entry(last.at_ns + 1, 99, 99, RestoreStarted(), last.writer)])
    append(run_dir, [Entry(last.at_ns + 2, 99, 99, StepFinished(1, 0, 4), last.writer)])
    with Following(run_dir) as following:
        following.poll(EVER)
        assert following.impossible == 1
        assert following.first_impossible.startswith("StepFinished of attempt 99 cannot happen")
    with Following(run_dir) as resumed:
        assert resumed.first_impossible == following.first_impossible


def test_the_cache_is_written_by_itself_now_and_then(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cache, "SAVE_EVERY_ENTRIES", 50)
    lay_down(run_dir, split_by_writer(walk(10, 60)))
    Following(run_dir).poll(EVER)
    assert run_dir.fold.exists()
    assert not list(run_dir.cache.glob(".*"))


def test_what_was_read_ahead_of_the_horizon_is_in_no_cache(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cache, "SAVE_EVERY_ENTRIES", 1)
    lives = {"launcher-0": header("launcher-0"), "rank-0": header("rank-0")}
    write(run_dir, **lives | {"rank-0": lives["rank-0"] + said(10, "a") + said(10.8, "c")})
    clock = FakeClock(wall=11 * S)
    with Following(run_dir, clock) as ahead:
        assert (ahead.poll(), ahead.poll_ahead()) == (1, 1)
        with run_dir.event_file("launcher-0").open("ab") as late:
            late.write(said(10.4, "b"))
        clock.advance(2)
        assert ahead.poll() == 1
        assert ahead.fold.late == 1
    with Following(run_dir, clock) as after:
        assert after.poll() == 2
        assert after.fold == straight(run_dir)


def test_losses_that_are_no_numbers_survive_the_cache(run_dir: RunDir):
    entries = [
        *(entry for entry in split_by_writer(walk(11, 40))),
    ]
    last = entries[-1]
    late = StepFinished(1, 0, 4, loss=float("nan"))
    lay_down(run_dir, [*entries, Entry(last.at_ns + 1, -1, 999, late, last.writer)])
    with Following(run_dir) as following:
        following.poll(EVER)
        assert repr(following.fold.loss) == "nan"
    assert repr(Following(run_dir).fold.loss) == "nan"
    assert msgspec.msgpack.encode(Following(run_dir).fold) == msgspec.msgpack.encode(following.fold)
