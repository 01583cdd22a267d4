"""A test or more for each law of the log and its timeline, numbered as in docs/timeline.md."""

import os
import subprocess
import sys
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness import ledger, recorder
from harness.cache import Following
from harness.events import (
    AttemptStarted,
    Cause,
    CheckpointDeleted,
    CheckpointRejected,
    DrainRequested,
    Entry,
    EvaluationFinished,
    EvaluationStarted,
    Event,
    FailureDetected,
    FaultInjected,
    Header,
    Outcome,
    Place,
    RanksStopped,
    Reaction,
    Rejection,
    RestoreStarted,
    RunFinished,
    RunStarted,
    SaveCommitted,
    SaveStarted,
    SaveUnblocked,
    StacksDumped,
    Tier,
    TrainingResumed,
    Unknown,
    event_types,
)
from harness.fold import Fold, TimelineError
from harness.goodput import split
from harness.journal import Tail, read
from harness.lines import decode, encode
from harness.phases import NEXT_PHASE, OF_A_LIFE, PHASED, Phase
from harness.recorder import Recorder
from harness.rundir import RunDir
from harness.slots import Mark, SlotWriter
from harness.timeline import timeline
from tests.harness.runs import FakeClock, S, log, start, step, walk

KILLED = FailureDetected(1, Cause.SIGNAL, "SIGKILL")
INTO: dict[Phase, list[tuple[float, int, Event]]] = {
    Phase.DOWN: [],
    Phase.STARTUP: start()[:2],
    Phase.RESTORE: start()[:3],
    Phase.WARMUP: start()[:4],
    Phase.WORK: start(),
    Phase.EVALUATION: [*start(), (9, 1, EvaluationStarted(1))],
    Phase.SAVE_STALL: [*start(), (9, 1, SaveStarted(1, Tier.STORAGE))],
    Phase.RESTART: [*start(), (9, 1, KILLED), (9, 2, AttemptStarted(2))],
    Phase.DRAIN: [*start(), (9, 1, DrainRequested(30))],
    Phase.FINISHED: [*start(), (9, 1, RunFinished(Outcome.FAILED))],
}
"""The shortest way into each phase; the last entry is at second 9 at most."""


def folded(*lines: tuple[float, int, Event]) -> Fold:
    fold = Fold()
    for entry in log(*lines):
        fold.feed(entry)
    return fold


def made(kind: type[Event]) -> Event:
    """Some event of a kind."""
    some: dict[str, Any] = {
        "rank": 0,
        "cause": Cause.EXIT,
        "outcome": Outcome.FINISHED,
        "tier": Tier.STORAGE,
        "rejection": Rejection.TORN,
        "components": {},
        "update_to_weight": {},
        "groups": ["x"],
        "ranks": [0],
        "place": Place.LOSS,
        "reaction": Reaction.REPORT,
        "fields": {},
        "grace_s": 1.0,
        "loss": 1.0,
        "usual": 1.0,
        "deviations": 9.0,
        "warm": True,
    }
    texts = ("reason", "run_id", "tool", "path", "id", "kind", "target", "detail", "name")
    some |= dict.fromkeys((*texts, "samples_digest"), "x")
    return kind(**{f.name: some.get(f.name, 1) for f in fields(kind)})


# ── 1. transitions, not pairs ───────────────────────────────────────────────────────────────────


def test_law_1_wherever_everything_is_killed_the_log_still_covers_the_run():
    entries = walk(seed=5, length=150)
    for cut in range(1, len(entries) + 1):
        segments = timeline(entries[:cut]).segments
        assert all(a.end_ns == b.start_ns for a, b in pairwise(segments))
        open_since = segments[-1].end_ns if segments else entries[0].at_ns
        assert open_since <= entries[cut - 1].at_ns


# ── 2. a table decides ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("phase", NEXT_PHASE)
def test_law_2_an_event_that_cannot_happen_is_an_error_that_names_it_and_the_phase(phase: Phase):
    for kind in PHASED - set(NEXT_PHASE[phase]) - OF_A_LIFE:
        fold = folded(*INTO[phase])
        before = msgspec.msgpack.encode(fold)
        attempt = fold.attempt + (fold.attempt <= fold.dead_attempt)
        with pytest.raises(TimelineError, match=f"{kind.__name__} .* phase '{phase}'"):
            fold.feed(Entry(10 * S, attempt, 1, made(kind), "rank-0"))
        assert msgspec.msgpack.encode(fold) == before


@pytest.mark.parametrize("phase", NEXT_PHASE)
def test_law_2_each_row_leads_where_it_says(phase: Phase):
    for kind, target in NEXT_PHASE[phase].items():
        fold = folded(*INTO[phase])
        assert fold.phase is phase
        attempt = fold.attempt + (kind is AttemptStarted)
        fold.feed(Entry(10 * S, attempt, 1, made(kind), "rank-0"))
        # an attempt that begins while one is alive: that one has failed
        failed = kind is AttemptStarted and phase is Phase.STARTUP
        assert fold.phase is (Phase.RESTART if failed else target or Phase.WORK)


@pytest.mark.parametrize("phase", NEXT_PHASE)
def test_law_2_events_without_a_phase_change_it_nowhere(phase: Phase):
    for kind in [*event_types().values(), Unknown]:
        if kind in PHASED:
            continue
        fold = folded(*INTO[phase])
        fold.feed(Entry(10 * S, fold.attempt, 1, made(kind), "rank-0"))
        assert fold.phase is phase


@pytest.mark.parametrize("phase", [Phase.RESTART, Phase.WARMUP, Phase.WORK, Phase.FINISHED])
def test_law_2_events_of_an_attempt_that_is_over_move_nothing(phase: Phase):
    second_life = [
        (9.0, 2, e) for e in (AttemptStarted(2), RestoreStarted(), TrainingResumed(1, None))
    ]
    into = {
        Phase.WARMUP: [*start(), (9.0, 1, KILLED), *second_life],
        Phase.WORK: [*start(), (9.0, 1, KILLED), *second_life, (9.0, 2, step(2))],
    }
    for kind in PHASED - OF_A_LIFE:
        fold = folded(*into.get(phase, INTO[phase]))
        assert list(fold.feed(Entry(10 * S, 1, 1, made(kind), "rank-0"))) == []
        assert fold.phase is phase


# ── 3. interrupted ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "then", [[], [SaveStarted(1, Tier.STORAGE), SaveUnblocked(1, Tier.STORAGE)]]
)
def test_law_3_from_the_last_finished_step_to_the_detection_the_time_is_interrupted(
    then: list[Event],
):
    fold = folded(*start(), *[(9.0, 1, event) for event in then], (15, 1, KILLED))
    assert fold.totals[Phase.INTERRUPTED] == 7 * S
    assert fold.totals[Phase.WORK] == 0


# ── 4. lost ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("resumed", "lost_s"), [(3, 0), (2, 2), (1, 4), (0, 4)])
def test_law_4_lost_is_decided_by_where_training_resumed(resumed: int, lost_s: int):
    fold = folded(
        *start(),
        (10, 1, step(2)),
        (12, 1, step(3)),
        (12, 1, SaveStarted(3, Tier.STORAGE)),
        (12, 1, SaveUnblocked(3, Tier.STORAGE)),
        (13, 1, SaveCommitted(3, Tier.STORAGE, 5)),
        (14, 1, KILLED),
        (15, 2, AttemptStarted(2)),
        (16, 2, RestoreStarted()),
        (16.5, 2, CheckpointRejected(3, 1, Rejection.CHECKSUM, "the committed one")),
        (17, 2, TrainingResumed(resumed, Tier.STORAGE, 1)),
    )
    assert (fold.lost_ns, fold.ledger.lost_steps) == (lost_s * S, 3 - resumed)


# ── 5. warm-up ──────────────────────────────────────────────────────────────────────────────────


def test_law_5_the_first_step_of_an_attempt_is_warmup_and_not_work():
    fold = folded(
        *start(),
        (9, 1, KILLED),
        (9, 2, AttemptStarted(2)),
        (10, 2, RestoreStarted()),
        (11, 2, TrainingResumed(1, Tier.STORAGE, 1)),
        (15, 2, step(2)),
    )
    assert fold.totals[Phase.WARMUP] == 3 * S + 4 * S
    assert fold.totals[Phase.WORK] == 0


# ── 6. counters never fall, and there is one goodput ────────────────────────────────────────────


def test_law_6_what_is_lost_is_charged_and_not_taken_back():
    worked = folded(*start(), (10, 1, step(2)), (12, 1, step(3)))
    back = folded(
        *start(),
        (10, 1, step(2)),
        (12, 1, step(3)),
        (12, 1, KILLED),
        (13, 2, AttemptStarted(2)),
        (14, 2, RestoreStarted()),
        (15, 2, TrainingResumed(1, Tier.STORAGE, 1)),
    )
    assert back.totals[Phase.WORK] == worked.totals[Phase.WORK] == 4 * S
    assert (worked.lost_ns, back.lost_ns) == (0, 4 * S)
    assert (split(worked).goodput, split(back).goodput) == (4 / 12, 0.0)


@pytest.mark.parametrize("seed", range(5))
def test_law_6_a_live_fold_and_a_whole_timeline_give_one_goodput(seed: int):
    entries = walk(seed, 200)
    live = Fold()
    for entry in entries:
        live.feed(entry)
    assert split(live) == split(timeline(entries))


# ── 7. integer nanoseconds ──────────────────────────────────────────────────────────────────────


def test_law_7_sums_are_exact_where_floats_would_not_be():
    year_ns, odd_ns = 365 * 86_400 * S, 3
    entries = [
        Entry(year_ns, 0, 0, RunStarted("run", 2)),
        Entry(year_ns, 1, 1, AttemptStarted(2)),
        Entry(year_ns + 1, 1, 2, RestoreStarted()),
        Entry(year_ns + 2, 1, 3, TrainingResumed(0, None)),
    ]
    entries += [Entry(year_ns + 2 + n * odd_ns, 1, 3 + n, step(n)) for n in range(1, 1_001)]
    account = timeline(entries).account
    assert account.totals[Phase.WORK] == 999 * odd_ns
    assert account.wall_ns == 2 + 1_000 * odd_ns
    assert all(type(ns) is int for ns in account.totals.values())


# ── 8. time ─────────────────────────────────────────────────────────────────────────────────────


def test_law_8_every_file_begins_with_a_header_of_one_instant(tmp_path: Path):
    clock = FakeClock()
    with Recorder(RunDir.at(tmp_path), "run", "rank-0", clock=clock) as writer:
        writer.write(RanksStopped())
    header = decode(writer.path.read_bytes().splitlines()[0])
    assert isinstance(header, Header)
    assert (header.monotonic_ns, header.wall_ns) == (clock.monotonic, clock.wall)
    assert header.host
    assert header.boot_id


def test_law_8_whatever_the_wall_clock_does_no_duration_is_negative_or_wrong(tmp_path: Path):
    run_dir, clock = RunDir.at(tmp_path), FakeClock()
    launcher = Recorder(run_dir, "run", "launcher-0", clock=clock)
    launcher.write(RunStarted("run", 1))
    clock.advance(1)
    clock.wall -= 3_600 * S
    rank = Recorder(run_dir, "run", "rank-0", 1, clock=clock)
    launcher.attempt = 1
    launcher.write(AttemptStarted(1))
    clock.advance(1)
    clock.wall += 86_400 * S
    for event in (RestoreStarted(), TrainingResumed(0, None), step(1), step(2), step(3)):
        rank.write(event)
        clock.advance(1)
        clock.wall -= 60 * S
    launcher.write(FailureDetected(0, Cause.SIGNAL, "SIGKILL"))
    launcher.close()
    rank.close()
    account = timeline(read(run_dir)).account
    in_seconds = {phase.value: ns / S for phase, ns in account.totals.items() if ns}
    assert in_seconds == {"startup": 2, "restore": 1, "warmup": 1, "work": 2, "interrupted": 1}


def test_law_8_what_comes_after_the_horizon_is_applied_there_and_counted(tmp_path: Path):
    run_dir = RunDir.at(tmp_path)
    run_dir.create()
    header = encode(Header(1, "run", "rank-0", "host", "b1", 1, 0, 0))
    on_time = log(*start(), (12, 1, step(2)))
    run_dir.event_file("rank-0").write_bytes(header + b"".join(map(encode, on_time)))
    tail, fold = Tail(run_dir), Fold()
    for entry in tail.poll(20 * S):
        fold.feed(entry)
    late = encode(Entry(11 * S, 1, 0, FailureDetected(1, Cause.HANG, "noticed, and written late")))
    run_dir.event_file("launcher-0").write_bytes(header.replace(b"rank-0", b"launcher-0") + late)
    for entry in tail.poll(20 * S):
        fold.feed(entry)
    assert (fold.late, fold.phase) == (1, Phase.RESTART)
    assert fold.recovery.records[0].failed_at_ns == 12 * S
    assert sum(fold.totals.values()) == fold.wall_ns == 12 * S


# ── 9. durable and bounded ──────────────────────────────────────────────────────────────────────


def test_law_9_what_is_written_is_in_the_file_when_the_writer_is_killed_at_once(tmp_path: Path):
    program = (
        "import os, signal, sys\n"
        "from harness.events import StacksDumped\n"
        "from harness.recorder import Recorder\n"
        "from harness.rundir import RunDir\n"
        "writer = Recorder(RunDir.at(sys.argv[1]), 'run', 'rank-0')\n"
        "for n in range(100):\n"
        "    writer.write(StacksDumped(str(n)))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert [e.event for e in read(RunDir.at(tmp_path))] == [
        StacksDumped(str(n)) for n in range(100)
    ]


def test_law_9_a_fold_does_not_grow_with_the_log(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ledger, "RECENT_STEPS", 200)
    fold, sizes = Fold(keep=8), list[int]()
    fold.feed(Entry(0, 0, 0, RunStarted("run", 2)))
    for attempt in range(1, 61):
        for event in an_attempt(attempt, first=100 * attempt - 99, last=100 * attempt):
            fold.feed(Entry(fold.at_ns + S, attempt, 0, event, "rank-0"))
        sizes.append(len(msgspec.msgpack.encode(fold)))
    assert fold.step == 6_000
    assert max(sizes[30:]) < 1.02 * max(sizes[10:30])


def an_attempt(attempt: int, first: int, last: int) -> list[Event]:
    """Everything that leaves a trace in the fold: steps, evaluations, a save, a fault, a failure."""
    events: list[Event] = [AttemptStarted(2), RestoreStarted(), TrainingResumed(first - 1, None)]
    for n in range(first, last + 1):
        events += [step(n), EvaluationStarted(n), EvaluationFinished(n, 1.0)]
    return [
        *events,
        CheckpointRejected(last, attempt, Rejection.TORN, "x"),
        SaveStarted(last, Tier.STORAGE),
        SaveUnblocked(last, Tier.STORAGE),
        SaveCommitted(last, Tier.STORAGE, 5),
        CheckpointDeleted(last, attempt),
        FaultInjected(f"f{attempt}", "kill", "rank 1"),
        KILLED,
    ]


def test_law_9_going_back_further_than_marks_are_kept_charges_the_nearest_one_before(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(ledger, "RECENT_STEPS", 10)
    lines = start()
    for n in range(2, 101):
        lines.append((8.0 + n, 1, step(n)))
        if n == 50:
            lines.append((8.0 + n, 1, SaveStarted(n, Tier.STORAGE)))
            lines.append((8.0 + n, 1, SaveUnblocked(n, Tier.STORAGE)))
    lines += [(109, 1, KILLED), (110, 2, AttemptStarted(2)), (111, 2, RestoreStarted())]
    for resumed, charged_s in [(95, 5), (50, 50), (60, 50), (49, 100)]:
        fold = folded(*lines, (112, 2, TrainingResumed(resumed, Tier.STORAGE, 1)))
        assert (fold.lost_ns, fold.ledger.lost_steps) == (charged_s * S, 100 - resumed)


def test_law_9_a_reader_that_comes_again_reads_the_tail_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recorder, "ROLL_BYTES", 20_000)
    run_dir = RunDir.at(tmp_path)
    with Recorder(run_dir, "run", "rank-0", clock=FakeClock()) as writer:
        for _, attempt, event in start():
            writer.attempt = attempt
            writer.write(event)
        for n in range(2, 500):
            writer.write(step(n))
        with Following(run_dir) as following:
            following.poll(1 << 61)
        writer.write(step(500))
        got: list[int] = []
        real = os.pread

        def counted(descriptor: int, length: int, offset: int) -> bytes:
            data = real(descriptor, length, offset)
            got.append(len(data))
            return data

        monkeypatch.setattr(os, "pread", counted)
        again = Following(run_dir)
        assert again.poll(1 << 61) == 1
        # a few bytes to see that the files are the same, and the new line
        assert sum(got) < 5_000 * len(list(run_dir.events.iterdir()))
    assert again.fold.step == 500


# ── 10. slots feed no counter ───────────────────────────────────────────────────────────────────


def test_law_10_what_reads_the_log_does_not_know_of_slots_nor_of_anything_heavy():
    program = (
        "import sys\n"
        "import harness.timeline, harness.goodput\n"
        "core = {'harness.slots', 'msgspec', 'xxhash', 'numpy', 'torch'} & set(sys.modules)\n"
        "import harness.cache\n"
        "more = {'harness.slots', 'numpy', 'torch'} & set(sys.modules)\n"
        "sys.exit(str(core | more) if core | more else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_law_10_a_slot_that_says_otherwise_changes_no_figure(tmp_path: Path):
    run_dir = RunDir.at(tmp_path)
    run_dir.create()
    with Recorder(run_dir, "run", "rank-0", 1) as writer:
        for event in (
            RunStarted("run", 1),
            AttemptStarted(1),
            RestoreStarted(),
            TrainingResumed(0, None),
            step(1),
        ):
            writer.write(event)
    before = timeline(read(run_dir))
    with SlotWriter(run_dir.slot(0), attempt=9) as slot:
        slot.update(mark=Mark.FINISHED, step=1_000_000, loss=0.0)
    assert timeline(read(run_dir)) == before
