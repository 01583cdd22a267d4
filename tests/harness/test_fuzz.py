"""Whatever the files of a run hold, its readers say a clear word or leave it out; none ends in a traceback."""

import io
import json
import random
import shutil
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from harness import journal
from harness.cache import Following
from harness.cli import main
from harness.collector import RunCollector
from harness.commands import DONE, NO
from harness.events import RunStarted, Unknown
from harness.exporter import Exporter
from harness.journal import SchemaError, Tail
from harness.page import serving
from harness.page.document import document
from harness.rundir import RunDir
from tests.damage import DEEP, spoilt
from tests.harness import stories
from tests.harness.runs import S

LOGS = sorted((Path(__file__).parents[1] / "logs").glob("*.jsonl"))

QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
chances = st.integers(0, 2**32).map(random.Random)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    run_dir = RunDir.at(tmp_path / "run")
    run_dir.create()
    return run_dir


def fill(run_dir: RunDir, log: bytes) -> None:
    """Make the events of `log`, in which files stand one after the other, those of the run."""
    shutil.rmtree(run_dir.path)
    run_dir.create()
    for part in log.split(b'{"schema"')[1:]:
        data = b'{"schema"' + part
        with run_dir.event_file(json.loads(data.splitlines()[0])["writer"]).open("ab") as file:
            file.write(data)


def told(*arguments: str | Path) -> tuple[int, str, str]:
    """Exit status, output and errors of `harness ARGUMENTS…`."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main([str(argument) for argument in arguments])
    return status, out.getvalue(), err.getvalue()


def scraped(run_dir: RunDir) -> str:
    registry, collector = CollectorRegistry(auto_describe=False), RunCollector(run_dir)
    registry.register(collector)
    try:
        return generate_latest(registry).decode()
    finally:
        collector.close()


def shown(run_dir: RunDir) -> bytes:
    """What the page of the run is given."""
    collector = RunCollector(run_dir)
    try:
        return serving.encoded(collector.seen(lambda now: document(now, time.time_ns())))
    finally:
        collector.close()


# ── the log ─────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=50, deadline=None, suppress_health_check=QUIET)
@given(st.sampled_from(LOGS), chances)
def test_a_damaged_log_is_reported_compared_and_served(
    run_dir: RunDir, log: Path, chance: random.Random
):
    fill(run_dir, log.read_bytes())
    for path in run_dir.events.iterdir():
        path.write_bytes(spoilt(path.read_bytes(), chance))
    for arguments in (["report"], ["report", "--json"], ["verify", run_dir.path]):
        status, out, err = told(*arguments, run_dir.path)
        if "newer than" in err:
            assert (status, len(err.splitlines()), out) == (NO, 1, "")
            return
        assert (status == DONE, err) == (True, "") or arguments[0] == "verify"
        assert len(out.splitlines()) >= 1
        if "--json" in arguments:
            json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert scraped(run_dir) == scraped(run_dir) or run_dir.fold.exists()
    json.loads(shown(run_dir))


@settings(max_examples=60, deadline=None, suppress_health_check=QUIET)
@given(st.sampled_from(LOGS), chances)
def test_a_damaged_log_goes_through_the_cache_as_it_goes_without(
    run_dir: RunDir, log: Path, chance: random.Random
):
    fill(run_dir, log.read_bytes())
    for path in run_dir.events.iterdir():
        path.write_bytes(spoilt(path.read_bytes(), chance))
    try:
        entries = journal.read(run_dir)
    except SchemaError:
        return
    until_ns = entries[len(entries) // 2].at_ns if entries else 0
    with Following(run_dir) as first:
        half = first.poll(until_ns)
        first.save()
    with Following(run_dir) as second:
        assert half + second.poll(1 << 62) == len(entries)


HEADER = (
    b'{"schema":1,"run_id":"r","writer":"rank-0","host":"h","boot_id":"b","pid":1,'
    b'"monotonic_ns":0,"wall_ns":%d}\n' % (1_700_000_000 * S)
)
STARTED = b'{"t":1,"a":0,"n":0,"e":"RunStarted","v":{"run_id":"r","world_size":2}}\n'


@pytest.mark.parametrize(
    "line",
    [
        DEEP,
        b'{"t":1,"a":1,"n":1,"e":"New","v":' + DEEP[:900] + b"]" * 900 + b"}",
        b'{"t":1,"a":1,"n":1,"e":"New","v":{"x":%d}}' % 2**63,
        b'{"t":1,"a":1,"n":1,"e":"StepFinished","v":{"step":%d,"samples_start":0,"samples_end":0}}'
        % 10**400,
        b'{"t":%d,"a":1,"n":1,"e":"RestoreStarted","v":{}}' % 2**63,
        b'{"t":1,"a":%d,"n":1,"e":"RestoreStarted","v":{}}' % 10**30,
        b'{"t":%d,"a":1,"n":1,"e":"New","v":{}}' % (2**62 - 1),
        HEADER.replace(b'"wall_ns":1', b'"wall_ns":99')[:-1],
        HEADER.replace(b'"monotonic_ns":0', b'"monotonic_ns":-1')[:-1],
        b"\xff" * 3,
    ],
)
def test_a_line_that_no_writer_makes_is_left_out_and_counted(run_dir: RunDir, line: bytes):
    run_dir.event_file("rank-0").write_bytes(HEADER + line + b"\n" + STARTED)
    tail = Tail(run_dir)
    assert [entry.event for entry in tail.poll(1 << 62)] == [RunStarted("r", 2)]
    assert tail.damaged_lines == 1
    assert told("report", run_dir.path)[0] == DONE


@pytest.mark.parametrize("size", [0, -1, 10**15])
def test_a_run_of_no_ranks_or_of_more_than_there_are_cannot_have_started(
    run_dir: RunDir, size: int
):
    line = STARTED.replace(b":2}", b":%d}" % size)
    run_dir.event_file("rank-0").write_bytes(HEADER + STARTED + line)
    with Following(run_dir) as following:
        following.poll(1 << 62)
        assert following.impossible == 1
        assert f"RunStarted of {size} ranks" in following.first_impossible
    assert f"RunStarted of {size} ranks" in told("report", run_dir.path)[1]
    assert 'harness_rank_up{job_name="run",rank="1"' in scraped(run_dir)


def test_a_line_without_an_end_is_read_in_pieces(run_dir: RunDir, monkeypatch):
    monkeypatch.setattr(journal, "_BLOCK_BYTES", 100)
    monkeypatch.setattr(journal, "_LONGEST_LINE_BYTES", 400)
    run_dir.event_file("rank-0").write_bytes(HEADER + b"x" * 2000 + b"\n" + STARTED)
    tail = Tail(run_dir)
    assert [entry.event for entry in tail.poll(1 << 62)] == [RunStarted("r", 2)]
    assert tail.damaged_lines >= 3


def test_a_digest_of_a_writer_that_is_no_rank_is_nobody_s(run_dir: RunDir):
    digested = (
        b'{"t":2,"a":1,"n":1,"e":"StateDigested","v":{"step":1,"components":{"model":"x"}}}\n'
    )
    run_dir.event_file("saver-0").write_bytes(HEADER.replace(b"rank-0", b"saver") + digested)
    assert told("report", run_dir.path)[0] == DONE
    assert told("verify", run_dir.path, run_dir.path)[::2] == (NO, "")


def test_a_folder_or_a_pipe_among_the_event_files_is_named(tmp_path: Path):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    run_dir.event_file("rank-8").mkdir()
    status, out, err = told("report", run_dir.path)
    assert (status, out, len(err.splitlines())) == (NO, "", 1)
    assert "it is no file, and an event log is made of files" in err
    assert "rank-8.jsonl" in err


def test_an_event_file_whose_name_is_no_text_is_nobody_s(tmp_path: Path):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    before = journal.read(run_dir)
    (run_dir.events / "\udcff.jsonl").write_bytes(HEADER + STARTED)
    assert journal.read(run_dir) == before
    with Following(run_dir) as following:
        following.poll()
        following.save()
    assert run_dir.fold.exists()


def test_an_event_of_another_version_with_any_fields_is_kept_as_it_is(run_dir: RunDir):
    line = b'{"t":1,"a":0,"n":0,"e":"New","v":{"x":[{"y":null}],"z":4611686018427387904}}\n'
    run_dir.event_file("rank-0").write_bytes(HEADER + line)
    (entry,) = journal.read(run_dir)
    assert entry.event == Unknown("New", {"x": [{"y": None}], "z": 1 << 62})


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"[]"])
def test_what_came_in_the_place_of_exporter_json_stays_when_the_exporter_leaves(
    run_dir: RunDir, content: bytes | None
):
    with Exporter(run_dir, port=0):
        run_dir.exporter.unlink()
        run_dir.exporter.mkdir() if content is None else run_dir.exporter.write_bytes(content)
    assert (
        run_dir.exporter.is_dir() if content is None else run_dir.exporter.read_bytes() == content
    )
