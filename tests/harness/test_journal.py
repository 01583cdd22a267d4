import math
import os
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import journal, lines
from harness.events import (
    SCHEMA,
    AttemptStarted,
    Cause,
    Entry,
    Event,
    FailureDetected,
    Header,
    RanksStopped,
    RunStarted,
    StacksDumped,
    StepFinished,
    Unknown,
    event_types,
)
from harness.journal import SchemaError, Tail, decode, encode, read
from harness.recorder import boot_id
from harness.rundir import RunDir
from harness.timeline import timeline
from tests.harness.runs import FakeClock, S, walk

LOGS = Path(__file__).parents[1] / "logs"
EVER = 1 << 61
COMMON = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40
)


def header(writer: str, boot: str = "b1", monotonic_s: float = 0, wall_s: float = 0) -> bytes:
    return encode(
        Header(SCHEMA, "run", writer, "host", boot, 7, round(monotonic_s * S), round(wall_s * S))
    )


def said(at_s: float, text: str, number: int = 0) -> bytes:
    return encode(Entry(round(at_s * S), 1, number, StacksDumped(text)))


def write(run_dir: RunDir, **files: bytes) -> None:
    run_dir.create()
    for name, content in files.items():
        run_dir.event_file(name.replace("_", "-")).write_bytes(content)


def heard(entries: list[Entry]) -> list[tuple[float, str]]:
    """(second, text) of entries that `said` wrote."""
    return [(e.at_ns / S, e.event.path) for e in entries if isinstance(e.event, StacksDumped)]


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir.at(tmp_path / "run")


# ── lines ───────────────────────────────────────────────────────────────────────────────────────

NUMBERS = st.integers(-(2**62), 2**62)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Any value that a field of an event may have."""
    if hint is int:
        return NUMBERS
    if hint is str:
        return st.text(max_size=20)
    if hint in (bool, float, type(None)):
        return st.from_type(hint)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return st.sampled_from(hint)
    if typing.get_origin(hint) is Mapping:
        numbers = st.floats(allow_nan=False, allow_infinity=False)
        of = {str: st.text(max_size=8), float: numbers}[typing.get_args(hint)[1]]
        return st.dictionaries(st.text(max_size=8), of, max_size=3)
    if typing.get_origin(hint) is Sequence:
        return st.lists(of_type(typing.get_args(hint)[0]), max_size=3)
    return st.one_of(*(of_type(part) for part in typing.get_args(hint)))


def any_event() -> st.SearchStrategy[Event]:
    known = [
        st.builds(kind, **{f.name: of_type(typing.get_type_hints(kind)[f.name]) for f in fields(kind)})
        for kind in event_types().values()
    ]  # fmt: skip
    unknown = st.builds(Unknown, st.just("Tomorrow"), st.dictionaries(st.text(max_size=5), PLAIN))
    return st.one_of(*known, unknown)


@settings(max_examples=400, deadline=None)
@given(st.builds(Entry, NUMBERS, NUMBERS, NUMBERS, any_event()))
def test_every_event_comes_back_from_its_line_as_it_was(entry: Entry):
    line = encode(entry)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert repr(decode(line)) == repr(entry)  # repr, because NaN is not equal to itself


def test_an_event_of_unknown_form_has_no_form_of_its_own():
    assert decode(b'{"t":1,"a":1,"n":1,"e":"Unknown","v":{"name":"x"}}') == Entry(
        1, 1, 1, Unknown("Unknown", {"name": "x"})
    )
    assert all("__slots__" in vars(kind) for kind in event_types().values())


@pytest.mark.parametrize("loss", [math.inf, -math.inf, 0.1, -0.0, 5e-324, None])
def test_a_loss_comes_back_bit_for_bit(loss: float | None):
    entry = Entry(1, 1, 1, StepFinished(1, 0, 4, loss=loss))
    assert decode(encode(entry)) == entry


def test_a_loss_that_is_no_number_is_still_none_of_the_others():
    came_back = decode(encode(Entry(1, 1, 1, StepFinished(1, 0, 4, loss=math.nan))))
    assert isinstance(came_back, Entry)
    assert isinstance(came_back.event, StepFinished)
    assert came_back.event.loss is not None
    assert math.isnan(came_back.event.loss)


def test_text_that_is_no_unicode_does_not_stop_the_log():
    line = encode(Entry(1, 1, 0, FailureDetected(0, Cause.EXIT, "file \udcff")))
    assert decode(line) == Entry(1, 1, 0, FailureDetected(0, Cause.EXIT, "file \\udcff"))


def test_an_unknown_event_is_kept_and_written_again_as_it_was():
    line = b'{"t":5,"a":1,"n":2,"e":"RankDreamt","v":{"of":["sheep",1]}}\n'
    entry = decode(line)
    assert entry == Entry(5, 1, 2, Unknown("RankDreamt", {"of": ["sheep", 1]}))
    assert encode(entry) == line


def test_unknown_fields_are_ignored_in_events_entries_and_headers():
    line = b'{"t":5,"new":1,"a":1,"n":2,"e":"AttemptStarted","v":{"world_size":2,"mood":"good"}}'
    assert decode(line) == Entry(5, 1, 2, AttemptStarted(2))
    newer = header("rank-0").replace(b"{", b'{"zone":"eu",', 1)
    assert decode(newer) == decode(header("rank-0"))


def test_a_known_event_of_another_form_is_kept_as_unknown():
    line = b'{"t":5,"a":1,"n":2,"e":"FailureDetected","v":{"rank":0,"cause":"gremlin","reason":""}}'
    fields_ = {"rank": 0, "cause": "gremlin", "reason": ""}
    assert decode(line) == Entry(5, 1, 2, Unknown("FailureDetected", fields_))


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b"null", b'{"t":1}', b"\0" * 40])  # fmt: skip
def test_what_is_no_line_of_a_log_is_refused(line: bytes):
    with pytest.raises(ValueError, match=r"is no line of a log|neither a header nor an entry"):
        decode(line)


def test_an_older_schema_is_read(run_dir: RunDir):
    old = header("rank-0").replace(b'"schema":1', b'"schema":0')
    write(run_dir, rank_0=old + said(1, "old"))
    assert heard(read(run_dir)) == [(1, "old")]


def test_a_newer_schema_is_refused_with_the_way_out(run_dir: RunDir):
    write(run_dir, rank_0=b'{"schema":2,"all":"else may differ"}\n' + said(1, "new"))
    with pytest.raises(SchemaError, match=r"schema 2 is newer than 1.*read it with"):
        read(run_dir)


def test_what_the_faster_way_reads_is_what_the_careful_one_reads():
    block = said(1, "a") + said(2, "b")
    entries = lines.decode_known(block, "rank-0", 5)
    assert entries == [decode(line, "rank-0", 5) for line in block.splitlines()]
    assert lines.decode_known(header("rank-0") + block, "rank-0", 5) is None


# ── whole logs ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("name", "bytes_at_once"), [("torn", 1), ("schema-1", 5), ("kill", 9)])
def test_a_log_cut_at_any_byte_still_reads(name: str, bytes_at_once: int, run_dir: RunDir):
    content = (LOGS / f"{name}.jsonl").read_bytes()
    run_dir.create()
    with run_dir.event_file("golden").open("wb", buffering=0) as file:
        for cut in range(0, len(content), bytes_at_once):
            file.write(content[cut : cut + bytes_at_once])
            whole_lines = content[: cut + bytes_at_once].split(b"\n")[:-1]
            assert len(read(run_dir)) == sum(map(is_entry, whole_lines))


def is_entry(line: bytes) -> bool:
    try:
        return isinstance(decode(line), Entry)
    except ValueError:
        return False


def test_a_half_written_last_line_is_left_out_until_it_is_whole(run_dir: RunDir):
    line = said(2, "b")
    write(run_dir, rank_0=header("rank-0") + said(1, "a") + line[:-1])
    tail = Tail(run_dir)
    assert heard(tail.poll(EVER)) == [(1, "a")]
    run_dir.event_file("rank-0").write_bytes(header("rank-0") + said(1, "a") + line)
    assert heard(tail.poll(EVER)) == [(2, "b")]


def test_damaged_lines_are_left_out_and_counted(run_dir: RunDir):
    rubbish = b"\0\0\0\0\n" + b'{"t":1,"a"\n' + b"\n"
    write(run_dir, rank_0=header("rank-0") + said(1, "a") + rubbish + said(2, "b"))
    tail = Tail(run_dir)
    assert heard(tail.poll(EVER)) == [(1, "a"), (2, "b")]
    assert tail.damaged_lines == 2


def test_entries_before_any_header_have_no_time_and_are_left_out(run_dir: RunDir):
    write(run_dir, rank_0=said(1, "lost") + header("rank-0") + said(2, "kept"))
    assert heard(read(run_dir)) == [(2, "kept")]


def test_a_run_without_a_log_reads_as_nothing(run_dir: RunDir):
    assert read(run_dir) == []
    run_dir.create()
    assert Tail(run_dir).poll() == []


# ── one axis ────────────────────────────────────────────────────────────────────────────────────


def test_writers_of_one_boot_are_merged_by_the_monotonic_clock(run_dir: RunDir):
    write(
        run_dir,
        launcher_0=header("launcher-0", "b1", 10, 1_000) + said(11, "a") + said(14, "d", 1),
        rank_0=header("rank-0", "b1", 11, 1_001) + said(12, "b") + said(13, "c", 1),
    )
    assert heard(read(run_dir)) == [(1001, "a"), (1002, "b"), (1003, "c"), (1004, "d")]


def test_a_wall_clock_that_steps_changes_nothing_within_a_boot(run_dir: RunDir):
    write(
        run_dir,
        launcher_0=header("launcher-0", "b1", 10, 1_000) + said(11, "a"),
        rank_0=header("rank-0", "b1", 12, 7) + said(12, "b") + said(13, "d", 1),
        rank_1=header("rank-1", "b1", 12, 90_000) + said(12.5, "c"),
    )
    assert heard(read(run_dir)) == [(1001, "a"), (1002, "b"), (1002.5, "c"), (1003, "d")]


def test_ties_are_broken_by_writer_and_then_by_sequence(run_dir: RunDir):
    write(
        run_dir,
        rank_0=header("rank-0") + said(1, "c", 0) + said(1, "d", 1),
        launcher_0=header("launcher-0") + said(1, "a", 0) + said(1, "b", 1),
    )
    assert [text for _, text in heard(read(run_dir))] == ["a", "b", "c", "d"]


def test_another_boot_has_an_offset_of_its_own(run_dir: RunDir):
    write(
        run_dir,
        launcher_0=header("launcher-0", "b1", 500, 1_000)
        + said(501, "a")
        + header("launcher-0", "b2", 3, 2_000)
        + said(4, "c"),
        rank_0=header("rank-0", "b1", 501, 1_001)
        + said(502, "b")
        + header("rank-0", "b2", 5, 2_002)
        + said(6, "d"),
    )
    assert heard(read(run_dir)) == [(1001, "a"), (1002, "b"), (2001, "c"), (2003, "d")]


def test_a_boot_whose_wall_clock_went_back_still_follows_the_one_before(run_dir: RunDir):
    write(
        run_dir,
        launcher_0=header("launcher-0", "b1", 500, 1_000)
        + said(501, "a")
        + header("launcher-0", "b2", 3, 60)
        + said(4, "c"),
        rank_0=header("rank-0", "b1", 501, 1_001) + said(509, "b"),
        rank_1=header("rank-1", "b2", 4.5, 61.5) + said(5, "d"),
    )
    assert heard(read(run_dir)) == [(1001, "a"), (1009, "b"), (1010, "c"), (1011, "d")]


def test_machines_that_run_side_by_side_keep_their_own_times(run_dir: RunDir):
    write(
        run_dir,
        launcher_0=header("launcher-0", "b1", 500, 1_000) + said(501, "a") + said(503, "c", 1),
        rank_1=header("rank-1", "b2", 9_000, 1_001) + said(9_001, "b") + said(9_003, "d", 1),
    )
    assert heard(read(run_dir)) == [(1001, "a"), (1002, "b"), (1003, "c"), (1004, "d")]


# ── the tail ────────────────────────────────────────────────────────────────────────────────────


def test_each_entry_is_handed_out_once_and_a_second_behind(run_dir: RunDir):
    write(run_dir, rank_0=header("rank-0") + said(1, "a") + said(2, "b", 1))
    tail = Tail(run_dir)
    assert heard(tail.poll(2 * S - 1)) == []
    assert heard(tail.poll(2 * S)) == [(1, "a")]
    assert heard(tail.poll(2 * S)) == []
    assert heard(tail.poll(9 * S)) == [(2, "b")]


def test_the_present_is_the_monotonic_clock_on_the_axis_of_this_boot(run_dir: RunDir):
    clock = FakeClock(monotonic=50 * S, wall=777 * S)
    write(run_dir, rank_0=header("rank-0", boot_id(), 10, 1_000) + said(49.5, "a"))
    tail = Tail(run_dir, clock=clock)
    assert tail.poll() == []
    assert tail.now_ns() == 1040 * S
    clock.monotonic = round(50.5 * S)
    assert heard(tail.poll()) == [(1039.5, "a")]


def split_by_writer(entries: list[Entry]) -> list[Entry]:
    """The same log, from a launcher and ranks, no two entries at one instant."""
    launcher = (RunStarted, AttemptStarted, FailureDetected, RanksStopped)
    return [
        Entry(
            entry.at_ns + place,
            entry.attempt,
            place,
            entry.event,
            "launcher-0" if isinstance(entry.event, launcher) else entry.writer,
        )
        for place, entry in enumerate(entries)
    ]


@COMMON
@given(st.integers(0, 2**32), st.data())
def test_any_order_of_arrival_within_the_horizon_gives_the_same_timeline(
    tmp_path_factory: pytest.TempPathFactory, seed: int, data: st.DataObject
):
    entries = split_by_writer(walk(seed, 60))
    delays = data.draw(st.lists(st.integers(0, S), min_size=60, max_size=60))
    visible: dict[str, int] = {}
    arrivals: list[tuple[int, Entry]] = []
    for entry, delay_ns in zip(entries, delays, strict=True):
        # a writer's lines come in their order, each at most a second after its instant
        visible[entry.writer] = max(visible.get(entry.writer, 0), entry.at_ns + delay_ns)
        arrivals.append((visible[entry.writer], entry))
    run_dir = RunDir.at(tmp_path_factory.mktemp("run"))
    write(run_dir, **{writer: header(writer) for writer in visible})
    tail, got = Tail(run_dir), list[Entry]()
    for at_ns, entry in sorted(arrivals, key=lambda arrival: arrival[0]):
        got += tail.poll(at_ns)
        with run_dir.event_file(entry.writer).open("ab") as file:
            file.write(encode(entry))
    got += tail.poll(EVER)
    assert got == entries == read(run_dir)
    assert timeline(got) == timeline(entries)
    assert timeline(got).account.late == 0


@COMMON
@given(st.integers(0, 2**32), st.integers(150, 2_000))
def test_blocks_of_any_size_give_the_same_entries(
    tmp_path_factory: pytest.TempPathFactory, seed: int, block_bytes: int
):
    entries = split_by_writer(walk(seed, 80))
    run_dir = RunDir.at(tmp_path_factory.mktemp("run"))
    files: dict[str, bytes] = {}
    for place, entry in enumerate(entries):
        if place % 25 == 0:  # a new life, now and then on another boot
            boot = f"b{place // 50}"
            files = {
                writer: files.get(writer, b"") + header(writer, boot, 0, 0)
                for writer in ("launcher-0", "rank-0", "rank-1")
            }
        files[entry.writer] += encode(entry)
    write(run_dir, **files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "_BLOCK_BYTES", block_bytes)
        batches = list(Tail(run_dir).batches(EVER))
    assert [entry for batch in batches for entry in batch] == read(run_dir)
    assert len(read(run_dir)) == len(entries)


def test_a_line_longer_than_a_block_is_read(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(journal, "_BLOCK_BYTES", 64)
    write(run_dir, rank_0=header("rank-0") + said(1, "x" * 1_000) + said(2, "b"))
    assert heard(Tail(run_dir).poll(EVER)) == [(1, "x" * 1_000), (2, "b")]


def test_memory_holds_a_block_of_a_long_log_and_not_all_of_it(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journal, "_BLOCK_BYTES", 4_096)
    content = b"".join(said(n, f"{n}", n) for n in range(2_000))
    write(run_dir, rank_0=header("rank-0") + content, rank_1=header("rank-1") + content)
    sizes = [len(batch) for batch in Tail(run_dir).batches(EVER)]
    assert sum(sizes) == 4_000
    assert max(sizes) < 300


def test_files_that_are_not_new_are_not_opened_again(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
):
    write(run_dir, rank_0=header("rank-0") + said(1, "a"), rank_1=header("rank-1"))
    tail = Tail(run_dir)
    tail.poll(EVER)
    monkeypatch.setattr(os, "pread", lambda *_: pytest.fail("read again"))
    assert tail.poll(EVER) == []
