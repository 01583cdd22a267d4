import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultinject import targets
from faultinject.targets import Refusal, Victim, Why
from harness import recorder as recorders
from harness.beginning import start_ticks
from harness.events import GroupFormed
from harness.recorder import Recorder, boot_id
from harness.rundir import RunDir
from tests.faultinject.conftest import Ranks, rewrite, worker

HOLD = """
import fcntl, os, sys, time
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
{lock}
print(os.getpid(), flush=True)
sys.stdin.read()
"""
LOCKS = {
    "no lock at all": "",
    "a shared lock": "fcntl.flock(descriptor, fcntl.LOCK_SH)",
    "a POSIX lock": "fcntl.lockf(descriptor, fcntl.LOCK_EX)",
    "a lock let go": "fcntl.flock(descriptor, fcntl.LOCK_EX); fcntl.flock(descriptor, 8)",
    "its parent's lock": "fcntl.flock(descriptor, fcntl.LOCK_EX); os.fork() and os.wait()",
}


def refused(run_dir: RunDir, rank: int = 0, attempt: int = 1) -> Why:
    """Why nobody may be hit; a process that might be is let go again."""
    found = targets.find(run_dir, rank, attempt, boot_id())
    if isinstance(found, Victim):
        found.close()
    assert isinstance(found, Refusal), f"process {found.pid} would have been hit"
    return found.why


def registered(run_dir: RunDir, pid: int, event_file: Path, start_ticks: int) -> None:
    values = {
        "schema": 1,
        "rank": 0,
        "local_rank": 0,
        "pid": pid,
        "start_ticks": start_ticks,
        "boot_id": boot_id(),
        "attempt": 1,
        "event_file": str(event_file),
    }
    run_dir.worker(0).write_text(json.dumps(values))


@contextmanager
def process(source: str, *arguments: str) -> Iterator[int]:
    """A process that runs `source` until its standard input is closed; the pid that it prints."""
    with subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stdout is not None
        yield int(started.stdout.readline())


def test_a_registered_rank_is_found_and_hit(run_dir: RunDir, start_rank: Ranks):
    rank = start_rank(0, 1).ready()

    with_victim = targets.find(run_dir, 0, 1, boot_id())

    assert isinstance(with_victim, Victim)
    with with_victim as victim:
        assert (victim.pid, victim.is_dead()) == (rank.pid, False)
        victim.send(signal.SIGKILL)
        assert rank.end() == -signal.SIGKILL
        assert victim.is_dead()
        victim.send(signal.SIGKILL)  # a dead process is no error


def test_a_victim_that_died_and_was_buried_is_dead_and_takes_no_signal(
    run_dir: RunDir, start_rank: Ranks
):
    rank = start_rank(0, 1).ready()
    victim = targets.find(run_dir, 0, 1, boot_id())
    assert isinstance(victim, Victim)

    with victim:
        rank.kill()
        victim.send(signal.SIGTERM)

        assert victim.is_dead()


def test_a_relative_event_file_is_one_of_the_run(run_dir: RunDir, start_rank: Ranks):
    start_rank(0, 1).ready()
    rewrite(run_dir, 0, {"event_file": "events/rank-0.jsonl"})

    found = targets.find(run_dir, 0, 1, boot_id())

    assert isinstance(found, Victim)
    found.close()


def test_a_run_that_is_reached_by_another_path_is_the_same_run(
    run_dir: RunDir, start_rank: Ranks, tmp_path: Path
):
    start_rank(0, 1).ready()
    (tmp_path / "link").symlink_to(run_dir.path)

    found = targets.find(RunDir.at(tmp_path / "link"), 0, 1, boot_id())

    assert isinstance(found, Victim)
    found.close()


def test_what_is_not_as_it_was_registered_is_refused(run_dir: RunDir, start_rank: Ranks):
    rank = start_rank(0, 1).ready()
    truth = worker(run_dir, 0)
    lies = [
        ({"start_ticks": truth["start_ticks"] - 1}, Why.REUSED),
        ({"boot_id": "00000000-0000-0000-0000-000000000000"}, Why.OTHER_BOOT),
        ({"attempt": 0}, Why.OTHER_ATTEMPT),
        ({"attempt": 2}, Why.OTHER_ATTEMPT),
        ({"rank": 1}, Why.UNREADABLE),
        ({"schema": 2}, Why.UNREADABLE),
        ({"pid": True}, Why.UNREADABLE),
        ({"pid": 2**80}, Why.GONE),
        ({"pid": -1}, Why.GONE),
        ({"pid": 0}, Why.GONE),
        ({"pid": 1}, Why.REUSED),
        ({"event_file": str(run_dir.events / "rank-9.jsonl")}, Why.UNLOCKED),
        ({"event_file": "/etc/passwd"}, Why.OTHER_RUN),
        ({"event_file": "events/../../passwd"}, Why.OTHER_RUN),
    ]
    for lie, why in lies:
        rewrite(run_dir, 0, truth | lie)
        assert (lie, refused(run_dir)) == (lie, why)

    rewrite(run_dir, 0, truth)
    assert rank.lives()


def test_a_refusal_says_what_it_found(run_dir: RunDir, start_rank: Ranks):
    rank = start_rank(0, 1).ready()
    ticks = worker(run_dir, 0)["start_ticks"]
    rewrite(run_dir, 0, {"start_ticks": ticks - 1})

    assert targets.find(run_dir, 0, 1, boot_id()) == Refusal(
        Why.REUSED,
        f"process {rank.pid} started at tick {ticks}, not {ticks - 1}: the pid was used again",
    )


def test_a_rank_that_never_registered_is_refused(run_dir: RunDir):
    assert refused(run_dir) is Why.UNREGISTERED


def test_a_dead_rank_is_refused_buried_or_not(run_dir: RunDir, start_rank: Ranks):
    rank = start_rank(0, 1).ready()
    ends = targets.find(run_dir, 0, 1, boot_id())
    assert isinstance(ends, Victim)

    with ends:
        rank.kill(reap=False)
        while not ends.is_dead():
            pass
        assert refused(run_dir) is Why.GONE
    rank.kill()
    assert refused(run_dir) is Why.GONE


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS.keys())
def test_a_process_that_holds_no_lock_of_its_own_is_refused(run_dir: RunDir, lock: str):
    event_file = run_dir.event_file("rank-0")
    with process(HOLD.replace("{lock}", lock), str(event_file)) as pid:
        registered(run_dir, pid, event_file, start_ticks(pid))

        assert refused(run_dir) is Why.UNLOCKED


def test_a_process_that_took_the_lock_itself_is_found(run_dir: RunDir):
    event_file = run_dir.event_file("rank-0")
    lock = "fcntl.flock(descriptor, fcntl.LOCK_EX)"
    with process(HOLD.replace("{lock}", lock), str(event_file)) as pid:
        registered(run_dir, pid, event_file, start_ticks(pid))

        found = targets.find(run_dir, 0, 1, boot_id())

        assert isinstance(found, Victim)
        found.close()


def test_a_rank_of_another_run_is_refused(run_dir: RunDir, start_rank: Ranks, tmp_path: Path):
    start_rank(0, 1).ready()
    other = RunDir.at(tmp_path / "other")
    other.create()
    other.event_file("rank-0").touch()
    truth = worker(run_dir, 0)

    other.worker(0).write_text(json.dumps(truth))
    assert refused(other) is Why.OTHER_RUN
    other.worker(0).write_text(json.dumps(truth | {"event_file": "events/rank-0.jsonl"}))
    assert refused(other) is Why.UNLOCKED


def test_a_rank_is_still_itself_after_its_event_file_rolled(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recorders, "ROLL_BYTES", 400)
    with Recorder(run_dir, "run", "rank-0", 1) as recorder:
        first = recorder.path
        for _ in range(20):
            recorder.write(GroupFormed(2))
        assert recorder.path != first

        assert targets.holds(os.getpid(), first)
    assert not targets.holds(os.getpid(), first)


TRUE = {"schema": 1, "attempt": 1, "rank": 0, "boot_id": boot_id()}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=3,
)


@pytest.fixture(scope="module")
def lying_run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    made = RunDir.at(tmp_path_factory.mktemp("lies"))
    made.create()
    return made


@given(
    raw=st.binary(max_size=50)
    | st.fixed_dictionaries(
        {"pid": st.integers() | json_values, "start_ticks": st.integers() | json_values}
        | {"event_file": st.text(alphabet="ab/.\0\ud800") | json_values}
        | {key: st.just(value) | json_values for key, value in TRUE.items()}
    ).map(lambda values: json.dumps(values).encode())
)
def test_no_garbage_in_a_worker_file_hits_anybody(lying_run: RunDir, raw: bytes):
    lying_run.worker(0).write_bytes(raw)

    assert isinstance(targets.find(lying_run, 0, 1, boot_id()), Refusal)


def test_a_process_whose_name_is_odd_has_start_ticks(tmp_path: Path):
    odd = tmp_path / ") R 1 2 \xe9"
    odd.symlink_to("/bin/cat")
    with subprocess.Popen([odd], stdin=subprocess.PIPE) as started:
        ticks = start_ticks(started.pid)

    assert 0 <= ticks - start_ticks(1) < 10**12
