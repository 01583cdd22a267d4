"""What saving and restoring do when the storage misbehaves: each kind of fault, on a disk and on S3.

A save may fail, and is then told; training goes on, the older checkpoint stands, nothing half is seen.
"""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fsspec.core import url_to_fs

from faultinject import rulefile, tapefile
from faultinject.tape import Tape
from harness import settings
from harness.checkpoint.refusals import RestoreError
from harness.checkpoint.store import Store
from harness.events import CheckpointRejected, FaultInjected, Rejection, SaveCommitted, SaveFailed
from harness.journal import read
from harness.rundir import RunDir
from tests.harness.checkpoint.world import Rank, Run


@dataclass
class Faulty(Run):
    """A run whose storage is behind `chaos::`."""

    url: str = ""
    run_dir: RunDir = RunDir(Path("/nowhere"))  # noqa: RUF009 - frozen
    timeout_s: float = 2.0
    """For a call with all its tries."""

    def store(self) -> Store:
        return Store.open(f"chaos::{self.url}", self.run_id, timeout_s=self.timeout_s)

    def spoil(self, *tables: Mapping[str, Any]) -> None:
        """From now on the storage misbehaves like this, and counts from here."""
        self.run_dir.storage_faults.unlink(missing_ok=True)
        rules = tuple(map(rulefile.read, tables))
        tapefile.write(self.run_dir.tape, Tape(0, "plan", 2, (), rules))

    def saves(self, *steps: int, **options: Any) -> list[bool]:
        """An attempt that goes on and tries to save these steps; which of them it could."""

        def body(rank: Rank) -> list[bool]:
            return [rank.save(step) for step in steps]

        first, second = self.attempt(body, **options)
        assert first == second
        return first

    def resumed(self) -> int:
        """The step that an attempt on a storage without faults goes on from; 0 from nothing."""
        self.spoil()
        founds = self.choose()
        steps = {0 if found is None else found.step for found in founds}
        assert len(steps) == 1
        return steps.pop()

    def uncommitted(self) -> list[str]:
        """What is half there."""
        store = Store.open(self.url, self.run_id)
        return [place.name for place in store.places() if not store.is_committed(place)]

    def pass_s(self, seconds: float) -> None:
        """Have all that was created and deleted so far be that much longer ago."""
        history = self.run_dir.storage_history
        changes = [json.loads(line) for line in history.read_text().splitlines()]
        aged = [json.dumps([ns - int(seconds * 1e9), *rest]) for ns, *rest in changes]
        history.write_text("".join(f"{line}\n" for line in aged))

    def faults(self) -> list[str]:
        """Kinds of the faults that the log has."""
        return [e.event.kind for e in read(self.run_dir) if isinstance(e.event, FaultInjected)]

    def size_of(self, step: int) -> list[int]:
        """Sizes of the files of a committed step, in the order in which they were written."""
        files, root = url_to_fs(self.url, use_listings_cache=False)
        (place,) = (p for p in self.store().places() if p.step == step)
        listed = files.find(f"{root}/{place.name}", detail=True)
        return [int(entry["size"]) for _, entry in sorted(listed.items())]


@pytest.fixture(params=["file", "s3"])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faulty:
    run_dir = RunDir.at(tmp_path / "run")
    run_dir.create()
    monkeypatch.setenv("HARNESS_RUN_DIR", str(run_dir.path))
    record = settings.Record("run", ("train.py",), {}, {}, armed=True)
    settings.write(run_dir.settings, record)
    if request.param == "file":
        url = f"file://{tmp_path}/checkpoints"
    else:
        url = request.getfixturevalue("s3_url")
    made = Faulty(tmp_path / "checkpoints", url=url, run_dir=run_dir)
    made.spoil()
    return made


WRITES = {
    "a shard": {"operations": ["write"], "name": "*/shard-*"},
    "the state": {"operations": ["write"], "name": "*/state.json"},
    "the manifest": {"operations": ["write"], "name": "*/manifest.json"},
    "the commit": {"operations": ["create"], "name": "*/commit.json"},
}


@pytest.mark.parametrize("what", WRITES)
def test_a_save_that_fails_is_told_once_and_costs_nothing_else(run, what):
    run.commit(10)
    run.spoil({"kind": "eio", **WRITES[what]})
    assert run.saves(20) == [False]
    assert run.uncommitted() == []
    assert len(run.log.of(SaveFailed)) == 1
    assert set(run.faults()) == {"store.eio"}
    run.spoil()
    assert run.saves(30) == [True]
    assert run.resumed() == 30
    assert run.log.of(CheckpointRejected) == []


@pytest.mark.parametrize("what", WRITES)
def test_throttling_is_survived(run, what):
    run.spoil({"kind": "throttle", "most": 2, **WRITES[what]})
    assert run.saves(10) == [True]
    assert len(run.faults()) == 2
    assert run.log.of(SaveFailed) == []
    assert run.resumed() == 10


@pytest.mark.parametrize("operation", ["list", "look", "read"])
def test_throttling_of_a_restore_is_survived(run, operation):
    run.commit(10)
    run.spoil({"kind": "throttle", "operations": [operation], "most": 2})
    assert [found.step for found in run.choose()] == [10, 10]
    assert len(run.faults()) == 2
    assert run.log.of(CheckpointRejected) == []


def test_a_disk_that_is_full_at_any_byte_of_a_save_costs_that_save(run):
    run.commit(10)
    sizes = run.size_of(10)
    # Ranks write at once, so a boundary is that of any of them: every file alone and all together.
    ends = {0, *sizes, *(sum(sizes[:n]) for n in range(1, len(sizes) + 1))}
    total = sum(sizes)
    around = (-1, 0, 1) if run.url.startswith("file") else (-1,)  # on S3 a file is one request
    for step, room in enumerate(sorted({max(0, end + by) for end in ends for by in around}), 20):
        run.log.events.clear()
        run.spoil({"kind": "enospc", "name": "step-*", "after_bytes": room})
        saved = run.saves(step)
        if room >= total + 100:  # numbers in it may be longer than those of step 10
            assert saved == [True]
        elif room < total:
            assert saved == [False], room
            assert len(run.log.of(SaveFailed)) == 1
        last = step if saved == [True] else 10
        assert run.resumed() == last
        assert run.uncommitted() == []
        if last != 10:
            break


def test_a_bit_that_flips_on_its_way_to_the_storage_is_found_and_walked_past(run):
    run.commit(10)
    run.spoil({"kind": "bit_flip", "operations": ["write"], "name": "*/shard-*", "nth": 2})
    run.saves(20)
    assert run.resumed() == 10
    (rejected,) = run.log.of(CheckpointRejected)
    assert (rejected.step, rejected.rejection) == (20, Rejection.CHECKSUM)


def test_a_short_write_is_found_and_walked_past(run):
    run.commit(10)
    run.spoil({"kind": "short_write", "name": "*/shard-*", "nth": 1})
    run.saves(20)
    assert run.resumed() == 10


@pytest.mark.parametrize("kind", ["bit_flip", "truncate"])
def test_a_read_that_was_wrong_once_is_never_taken_for_the_state(run, kind):
    run.commit(10)
    run.commit(20)
    run.spoil({"kind": kind, "operations": ["read"], "name": "*/shard-*", "nth": 1})
    steps = {found.step for found in run.choose()}
    assert steps <= {10, 20}
    assert run.faults() == [f"store.{kind}"]


@pytest.mark.parametrize("age_s", [1800, 10_000])
def test_a_stale_listing_never_leads_to_an_older_state_or_another_s(run, age_s):
    run.spoil({"kind": "stale", "seconds": age_s, "from_nth": 1 << 50})  # a history, and no more
    run.commit(10)
    run.commit(20)
    run.pass_s(3600)
    run.commit(30)
    for nth in range(1, 100):
        run.spoil({"kind": "stale", "seconds": age_s, "nth": nth})
        before = len(run.faults())
        with suppress(RestoreError):  # is no wrong resume
            assert [found and found.step for found in run.choose()] == [30, 30], nth
        if len(run.faults()) == before:
            break
    assert nth > 1
    run.spoil({"kind": "stale", "seconds": age_s})
    assert [found and found.step for found in run.choose()] == [30, 30]
    assert run.resumed() == 30


def test_a_hang_becomes_a_failed_save_within_the_deadline(run):
    run.commit(10)
    run.spoil(
        {"kind": "hang", "seconds": 600, "operations": ["write"], "name": "*/shard-*", "most": 1}
    )
    began = time.monotonic()
    assert run.saves(20, deadline_s=2.0) == [False]
    assert time.monotonic() - began < 60
    assert len(run.log.of(SaveFailed)) == 1
    assert run.resumed() == 10


def test_latency_costs_time_alone(run):
    run.spoil({"kind": "latency", "seconds": 0.3, "operations": ["write"], "name": "*/shard-*"})
    assert run.saves(10) == [True]
    assert run.log.of(SaveCommitted)[0].step == 10
    assert run.resumed() == 10
