import fcntl
import os
import threading
from pathlib import Path

import pytest

from harness import recorder
from harness.events import Entry, Header, RanksStopped, RunStarted, StacksDumped
from harness.journal import read
from harness.lines import decode
from harness.recorder import Recorder, boot_id
from harness.rundir import RunDir
from tests.harness.runs import FakeClock


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir.at(tmp_path)


def lines(path: Path) -> list[Entry | Header]:
    return [decode(line) for line in path.read_bytes().splitlines(keepends=True)]


def events(run_dir: RunDir) -> list[tuple[str, object]]:
    return [(entry.writer, entry.event) for entry in read(run_dir)]


def held() -> set[Path]:
    """The files that this process has open."""
    links = [Path(f"/proc/self/fd/{fd}") for fd in range(1_024)]
    return {link.readlink() for link in links if link.is_symlink()}


def test_an_entry_carries_time_attempt_and_sequence_behind_a_header(run_dir: RunDir):
    clock = FakeClock(monotonic=500, wall=9_000)
    with Recorder(run_dir, "run", "rank-3", attempt=2, clock=clock) as writer:
        clock.monotonic = 600
        first = writer.write(RunStarted("run", 4))
        writer.attempt = 3
        second = writer.write(RanksStopped(), at_ns=550)
        assert writer.path == run_dir.event_file("rank-3")
    header, *entries = lines(run_dir.event_file("rank-3"))
    assert isinstance(header, Header)
    assert (header.schema, header.run_id, header.writer) == (1, "run", "rank-3")
    assert (header.boot_id, header.pid) == (boot_id(), os.getpid())
    assert (header.monotonic_ns, header.wall_ns) == (500, 9_000)
    assert entries == [Entry(600, 2, 0, RunStarted("run", 4)), Entry(550, 3, 1, RanksStopped())]
    assert (first.writer, second.sequence) == ("rank-3", 1)


def test_a_recorder_that_cannot_begin_holds_nothing_open_and_the_next_one_gets_the_file(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
):
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            Recorder(run_dir, "run", "rank-0")

    assert run_dir.event_file("rank-0") not in held()
    with Recorder(run_dir, "run", "rank-0") as writer:
        assert writer.path == run_dir.event_file("rank-0")


def test_a_roll_that_cannot_begin_is_tried_again_and_loses_nothing_that_comes_later(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recorder, "ROLL_BYTES", 1)
    real, files = os.write, [run_dir.event_file("rank-0", roll) for roll in range(4)]

    def full_at_last(descriptor: int, data: bytes) -> int:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == files[2]:
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    with Recorder(run_dir, "run", "rank-0") as writer:
        writer.write(RanksStopped())  # into the second file
        monkeypatch.setattr(os, "write", full_at_last)
        with pytest.raises(OSError, match="No space left"):
            writer.write(RanksStopped())
        assert held() & set(files) == {files[0], files[1]}
        monkeypatch.setattr(os, "write", real)
        writer.write(RanksStopped())
    assert [event for _, event in events(run_dir)] == [RanksStopped(), RanksStopped()]


def test_each_entry_is_one_write_to_an_append_only_descriptor(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
):
    writer = Recorder(run_dir, "run", "rank-0")
    written: list[bytes] = []
    real = os.write

    def spy(descriptor: int, data: bytes) -> int:
        assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
        written.append(data)
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", spy)
    writer.write(StacksDumped("incidents/1"))
    writer.write(RanksStopped())
    assert [line.count(b"\n") for line in written] == [1, 1]
    assert all(line.endswith(b"\n") for line in written)
    writer.close()


def test_a_successor_goes_on_in_the_same_file_with_a_header_of_its_own(run_dir: RunDir):
    for attempt in (1, 2):
        with Recorder(run_dir, "run", "rank-0", attempt) as writer:
            writer.write(RanksStopped())
    kinds = [type(line) for line in lines(run_dir.event_file("rank-0"))]
    assert kinds == [Header, Entry, Header, Entry]
    assert [entry.attempt for entry in read(run_dir)] == [1, 2]


def test_what_a_killed_predecessor_left_half_written_is_closed_first(run_dir: RunDir):
    with Recorder(run_dir, "run", "rank-0") as writer:
        writer.write(StacksDumped("whole"))
    path = run_dir.event_file("rank-0")
    path.write_bytes(path.read_bytes() + b'{"t":1,"a":1,"n":1,"e":"StacksDum')
    with Recorder(run_dir, "run", "rank-0") as writer:
        writer.write(StacksDumped("after"))
    assert [event for _, event in events(run_dir)] == [StacksDumped("whole"), StacksDumped("after")]


def test_a_file_that_another_process_holds_is_left_to_it(run_dir: RunDir):
    zombie = Recorder(run_dir, "run", "rank-0", attempt=1)
    writer = Recorder(run_dir, "run", "rank-0", attempt=2)
    assert writer.path == run_dir.event_file("rank-0", 1)
    zombie.write(StacksDumped("from the dead"))
    writer.write(StacksDumped("from the living"))
    assert [entry.attempt for entry in read(run_dir)] == [1, 2]
    zombie.close()
    writer.close()
    with Recorder(run_dir, "run", "rank-0") as third:
        assert third.path == run_dir.event_file("rank-0", 1)


def test_files_roll_when_they_are_full(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorder, "ROLL_BYTES", 1_000)
    with Recorder(run_dir, "run", "rank-0") as writer:
        for number in range(40):
            writer.write(StacksDumped(f"{number}"))
        assert writer.path != run_dir.event_file("rank-0")
    files = sorted(run_dir.events.iterdir())
    assert len(files) > 3
    assert all(file.stat().st_size < 1_200 for file in files)
    assert all(isinstance(lines(file)[0], Header) for file in files)
    assert [e.event for e in read(run_dir)] == [StacksDumped(f"{n}") for n in range(40)]
    assert [entry.sequence for entry in read(run_dir)] == list(range(40))


def test_the_first_file_stays_locked_for_life(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorder, "ROLL_BYTES", 300)
    with Recorder(run_dir, "run", "rank-0") as writer:
        for _ in range(20):
            writer.write(RanksStopped())
        first = run_dir.event_file("rank-0")
        assert writer.path != first
        assert first in held()
        with first.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with first.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_threads_may_write_at_once(run_dir: RunDir):
    with Recorder(run_dir, "run", "rank-0") as writer:
        threads = [
            threading.Thread(target=lambda: [writer.write(RanksStopped()) for _ in range(200)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    entries = [line for line in lines(writer.path) if isinstance(line, Entry)]
    assert [entry.sequence for entry in entries] == list(range(800))
    assert [e.at_ns for e in entries] == sorted(e.at_ns for e in entries)


def test_a_forked_child_holds_no_descriptor_of_the_log_and_cannot_write(run_dir: RunDir):
    writer = Recorder(run_dir, "run", "rank-0")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            writer.write(RanksStopped())
        except ValueError:
            code = 2 if writer.path in held() else 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    writer.write(RanksStopped())
    writer.close()
    assert len(read(run_dir)) == 1


def test_a_disk_that_takes_half_a_line_is_said_and_costs_that_line_alone(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
):
    writer = Recorder(run_dir, "run", "rank-0")
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:10]))
    with pytest.raises(OSError, match=r"took 10 of .* is the disk full"):
        writer.write(StacksDumped("lost"))
    monkeypatch.undo()
    writer.write(StacksDumped("kept"))
    writer.close()
    assert [event for _, event in events(run_dir)] == [StacksDumped("kept")]
