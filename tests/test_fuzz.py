"""The small files that people and processes hand over, damaged: a clear word, or nothing, is what is read."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from faultinject import plan, tape, tapefile, targets
from faultinject.command import faults
from harness import session, settings, slots
from harness.cache import Following
from harness.recorder import boot_id
from harness.report.planned import planned
from harness.rundir import RunDir
from harness.settings import Record
from harness.slots import SlotWriter
from launch import witness
from launch.orders import Ended
from tests.damage import WILD, flipped, spoilt

QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
chances = st.integers(0, 2**32).map(random.Random)
LOG = Path(__file__).parent / "logs" / "two-kills.jsonl"

PLAN = b"""schema = 1
seed = 7
max_faults = 3
start_delay_s = 1.5
[arrival]
exponential = { mtbf_s = 5 }
[[faults]]
kind = "kill"
weight = 2.0
target = "rank 0"
[[faults]]
kind = "kill"
"""
TAPE = tapefile.encode(tape.compile(plan.decode(PLAN), 2)).encode()
TOML_VALUES = (
    *("1", "-1", "0", "0.5", "nan", "inf", "-inf", "1e400", "9" * 30, "9" * 5000, "true", "''"),
    *("'x'", "[]", "{}", "1979-05-27", '"\\u0000"', "[1e9, nan]", "1e-300", "'rank 99999'"),
    *("[" * 5000 + "]" * 5000, "'" + "x" * 5000 + "'", "{ exponential = { mtbf_s = 1 } }"),
)


def revalued(data: bytes, chance: random.Random) -> bytes:
    """A file of TOML in which a key has another value."""
    lines = data.decode().splitlines()
    numbers = [number for number, line in enumerate(lines) if " = " in line]
    number = chance.choice(numbers)
    lines[number] = lines[number].split(" = ")[0] + " = " + chance.choice(TOML_VALUES)
    return "\n".join(lines).encode()


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    run_dir = RunDir.at(tmp_path / "run")
    run_dir.create()
    return run_dir


def refused(act: Callable[[], Any]) -> Any:
    """What `act` gives; None where it refuses, in a `ValueError` that is no longer than a screen."""
    try:
        return act()
    except ValueError as error:
        refusal = str(error)
    assert 0 < len(refusal) < 4000
    return None


@examples(max_examples=300, deadline=None)
@given(chances, st.sampled_from((flipped, spoilt, revalued, revalued)))
def test_a_damaged_plan_is_refused_or_becomes_a_tape_that_can_be_read(
    chance: random.Random, change: Callable[[bytes, random.Random], bytes]
):
    read = refused(lambda: plan.decode(change(PLAN, chance)))
    made = None if read is None else refused(lambda: tape.compile(read, 2))
    if made is not None:
        assert tapefile.decode(tapefile.encode(made).encode()) == made


@examples(max_examples=300, deadline=None, suppress_health_check=QUIET)
@given(chances)
def test_a_damaged_tape_is_refused_with_its_line(run_dir: RunDir, chance: random.Random):
    data = spoilt(TAPE, chance)
    run_dir.tape.write_bytes(data)
    read = refused(lambda: tapefile.decode(data))
    if read is not None:
        assert len(planned(run_dir.tape)) == len(read.faults)
    planned(run_dir.tape)


@examples(max_examples=300, deadline=None, suppress_health_check=QUIET)
@given(chances, st.sampled_from((flipped, spoilt, revalued, revalued)))
def test_a_damaged_run_toml_is_refused_or_can_be_written_again(
    run_dir: RunDir, chance: random.Random, change: Callable[[bytes, random.Random], bytes]
):
    asked = settings.resolve([("flag", {"seed": 3, "checkpoints": "/x"})])
    record = Record("r", ("train.py", "-x"), asked, {"torch": "2.9"}, armed=True)
    settings.write(run_dir.settings, record)
    run_dir.settings.write_bytes(change(run_dir.settings.read_bytes(), chance))
    read = refused(lambda: settings.read(run_dir.settings))
    if read is not None:
        settings.write(run_dir.settings, read)
        assert settings.read(run_dir.settings) == read
        refused(lambda: settings.renew([("flag", {"keep": "2"})], read.settings))


@examples(max_examples=200, deadline=None, suppress_health_check=QUIET)
@given(chances)
def test_a_damaged_slot_says_something_or_nothing(run_dir: RunDir, chance: random.Random):
    with SlotWriter(run_dir.slot(0), 1) as writer:
        writer.update(step=3)
    run_dir.slot(0).write_bytes(spoilt(run_dir.slot(0).read_bytes(), chance))
    slots.read(run_dir.slot(0))


WORKER = {
    "schema": 1,
    "rank": 0,
    "local_rank": 0,
    "pid": 1,
    "start_ticks": 5,
    "attempt": 1,
    "first_attempt": 1,
    "boot_id": boot_id(),
    "event_file": "events/rank-0.jsonl",
}
ERROR = {
    "schema": 1,
    "type": "ValueError",
    "where": "a:1",
    "at_ns": 5,
    "message": {"message": "x", "extraInfo": {"py_callstack": "", "timestamp": "1"}},
}


@examples(max_examples=200, deadline=None, suppress_health_check=QUIET)
@given(chances)
def test_what_a_rank_wrote_of_itself_is_believed_or_not(run_dir: RunDir, chance: random.Random):
    run_dir.worker(0).write_bytes(spoilt(json.dumps(WORKER).encode(), chance))
    run_dir.error(1, 0).parent.mkdir(exist_ok=True)
    run_dir.error(1, 0).write_bytes(spoilt(json.dumps(ERROR).encode(), chance))
    found = targets.find(run_dir, 0, 1, boot_id())
    assert isinstance(found, targets.Refusal), "process 1 holds no lock on it"
    session.first_of_launch(run_dir, 1, 5)
    witness.exit_of(run_dir, 1, 0, Ended("rank-0", 1, 1, 5))
    witness.raising(run_dir, 1, 0)


@examples(max_examples=100, deadline=None, suppress_health_check=QUIET)
@given(chances, st.booleans())
def test_a_damaged_cache_is_dropped_and_the_fold_is_what_it_was(
    run_dir: RunDir, chance: random.Random, twice: bool
):
    shutil.copy(LOG, run_dir.event_file("rank-0"))
    with Following(run_dir) as following:
        following.poll(1 << 62)
        whole = following.fold
    run_dir.fold.write_bytes((flipped if twice else spoilt)(run_dir.fold.read_bytes(), chance))
    following = Following(run_dir)
    following.poll(1 << 62)
    assert following.fold == whole


@pytest.mark.parametrize("content", [*WILD, b"", b"\n", TAPE[:-1] + b"\r\n" + TAPE])
def test_a_wild_tape_or_plan_makes_short_lines_and_status_2(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "file"
    file.write_bytes(content)
    for arguments in (
        ["check", file],
        ["show", file],
        ["compile", file, "--ranks", 2, "--out", file],
    ):
        assert faults([str(argument) for argument in arguments]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert all(f"{file}: " in line and len(line) < 500 for line in said.err.splitlines())
        assert file.read_bytes() == content


def test_a_slot_that_is_a_folder_or_a_pipe_is_none(run_dir: RunDir):
    run_dir.slot(0).mkdir()
    assert slots.read(run_dir.slot(0)) is None
