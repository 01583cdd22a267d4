import fcntl
import math
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from harness.collector import RunCollector
from harness.events import (
    AttemptStarted,
    Cause,
    Entry,
    Event,
    IntervalChosen,
    RestoreStarted,
    RunStarted,
    SaveStarted,
    SaveUnblocked,
    StepFinished,
    StepTimed,
    Tier,
    TrainingResumed,
)
from harness.goodput import split
from harness.metrics import COMMON, FAMILIES, PREFIX, Kind
from harness.phases import Phase
from harness.present import Present, by_rank
from harness.recovery import Restart
from harness.reliability import failures_seen
from harness.rundir import RunDir
from harness.samples import DRAW
from harness.settings import Record, resolve, write
from harness.slots import SlotWriter
from harness.timeline import Fold
from tests.harness import stories

Samples = dict[tuple[str, str], float]


def scraped(run_dir: RunDir) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunCollector(run_dir))
    return generate_latest(registry).decode()


def samples(text: str) -> Samples:
    """By name and the values of the labels that not every metric has."""
    return {
        (
            sample.name.removeprefix(PREFIX),
            ",".join(value for label, value in sample.labels.items() if label not in COMMON),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@contextmanager
def alive(run_dir: RunDir, *writers: str) -> Iterator[None]:
    """As if these writers were: each holds the lock on its file."""
    files = [run_dir.event_file(writer).open() for writer in writers]
    for file in files:
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        for file in files:
            file.close()


def test_every_sample_of_a_run_that_was_killed_once(tmp_path):
    text = scraped(stories.write(tmp_path / "run", stories.KILLED_ONCE))
    told = {
        key: value
        for key, value in samples(text).items()
        if value and not key[0].endswith("_bucket")
    }
    parts_s = {
        "detect": 0.2,
        "stacks": 0.005,
        "teardown": 0.015,
        "rendezvous": 0.02,
        "spawn": 0.02,
        "init": 0.06,
        "restore": 0.015,
        "group": 0.005,
        "setup": 0.02,
        "warmup": 0.1,
    }
    states_s = {
        "startup": 0.2,
        "restore": 0.14,
        "warmup": 0.3,
        "work": 1.45,
        "evaluation": 0.2,
        "save_stall": 0.09,
        "interrupted": 0.1,
        "restart": 0.12,
        "drain": 0.2,
    }
    assert told == {
        ("run_info", "unknown,ddp,0.1.0,2"): 1,
        ("run_start_timestamp_seconds", ""): 1.7e9,
        ("phase", "finished"): 1,
        **{("state_seconds_total", state): s for state, s in states_s.items()},
        **{("rank_seconds_total", state): 2 * s for state, s in states_s.items()},
        ("lost_work_seconds_total", ""): 0.6,
        ("lost_steps_total", ""): 1,
        ("goodput_ratio", ""): 0.375,
        ("steps_total", "useful"): 4,
        ("steps_total", "redone"): 1,
        ("tokens_total", "useful"): 400,
        ("tokens_total", "redone"): 100,
        ("step", ""): 4,
        ("restarts_total", "signal"): 1,
        ("unattended_recoveries_total", ""): 1,
        ("restart_duration_seconds_count", "first_step"): 1,
        ("restart_duration_seconds_sum", "first_step"): 0.46,
        ("restart_duration_seconds_count", "regained_step"): 1,
        ("restart_duration_seconds_sum", "regained_step"): 0.46,
        **{("restart_phase_duration_seconds_count", part): 1 for part in parts_s},
        **{("restart_phase_duration_seconds_sum", part): s for part, s in parts_s.items()},
        ("step_duration_seconds_count", ""): 3,
        ("step_duration_seconds_sum", ""): 1.4,
        ("checkpoint_saves_total", "committed,storage"): 2,
        ("checkpoint_stall_duration_seconds_count", "storage"): 2,
        ("checkpoint_stall_duration_seconds_sum", "storage"): 0.09,
        ("checkpoint_commit_duration_seconds_count", "storage"): 2,
        ("checkpoint_commit_duration_seconds_sum", "storage"): 0.39,
        ("checkpoint_restore_duration_seconds_count", "storage"): 1,
        ("checkpoint_restore_duration_seconds_sum", "storage"): 0.04,
        ("checkpoint_bytes_total", "write,storage"): 8e6,
        ("checkpoint_bytes_total", "read,storage"): 4e6,
        ("checkpoint_size_bytes", "storage"): 4e6,
        ("checkpoint_interval_seconds", "optimal,storage"): pytest.approx(0.3775, abs=1e-4),
        ("checkpoint_last_step", "storage"): 4,
        ("checkpoint_last_timestamp_seconds", "storage"): 1.7e9 + 2.7,
        ("rank_info", ",,,0"): 1,
        ("rank_info", ",,,1"): 1,
        ("loss", ""): 4.0,
        ("validation_loss", ""): 3.5,
        ("faults_injected_total", "kill,rank"): 1,
        ("detection_latency_seconds_count", "kill"): 1,
        ("detection_latency_seconds_sum", "kill"): 0.04,
        ("mtbf_seconds", "estimate"): 1.84,
        ("mtbf_seconds", "lower"): pytest.approx(0.3879, abs=1e-4),
        ("mtbf_seconds", "upper"): pytest.approx(35.87, abs=0.01),
    }


def test_a_run_that_was_asked_for_targets_tells_when_each_was_reached(tmp_path):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    asked = resolve([("flag", {"target_losses": "3.6, 3.25,9"})])
    write(run_dir.settings, Record("r1", ("train.py",), asked, {}))
    told = {key: value for key, value in samples(scraped(run_dir)).items() if "target" in key[0]}
    assert told == {
        ("target_loss_steps", "9"): 4,
        ("target_loss_steps", "3.6"): 4,
        ("target_loss_seconds", "9"): 2.5,
        ("target_loss_seconds", "3.6"): 2.5,
    }


TAPE = """\
{"schema": 2, "seed": 1, "plan": "p", "world_size": 2, "faults": 2, "storage": 2}
{"id": "1", "at_s": 0.5, "kind": "kill", "target": "rank 1"}
{"id": "2", "at_s": 1.5, "kind": "kill", "target": "rank 0"}
{"kind": "eio", "operations": ["create"], "name": "*", "nth": 4}
{"kind": "half \\ud800", "operations": ["open"], "name": "*", "nth": 4}
no line of a tape
["kind"]
"""


def test_the_first_of_what_can_be_foreseen_is_a_rise_from_zero(tmp_path):
    counted = ("faults_injected_total", "detection_latency_seconds_count", "restarts_total")
    before = stories.write(tmp_path / "run", stories.KILLED_ONCE[:3])
    before.tape.write_text(TAPE)
    after = stories.write(tmp_path / "after", stories.KILLED_ONCE)
    told = {
        key: value for key, value in samples(scraped(before)).items() if key[0].startswith(counted)
    }
    assert told == {
        ("faults_injected_total", "kill,rank"): 0,
        ("faults_injected_total", "store.eio,storage"): 0,
        ("faults_injected_total", "store.half ?,storage"): 0,
        ("detection_latency_seconds_count", "kill"): 0,
        **{("restarts_total", cause): 0 for cause in (*Cause, "unknown")},
    }
    after.tape.write_text(TAPE)
    told = samples(scraped(after))
    assert told["faults_injected_total", "kill,rank"] == 1
    assert told["faults_injected_total", "store.eio,storage"] == 0


def test_saves_that_failed_and_checkpoints_that_were_walked_past_are_counted_by_kind(tmp_path):
    told = samples(scraped(stories.write(tmp_path / "run", stories.TROUBLED)))
    counted = ("checkpoint_saves", "checkpoint_rejected", "checkpoint_bytes", "checkpoint_last")
    assert {key: value for key, value in told.items() if key[0].startswith(counted)} == {
        ("checkpoint_saves_total", "committed,storage"): 1,
        ("checkpoint_saves_total", "failed,storage"): 1,
        ("checkpoint_saves_total", "superseded,storage"): 0,
        ("checkpoint_bytes_total", "read,storage"): 0,
        ("checkpoint_bytes_total", "write,storage"): 4e6,
        ("checkpoint_rejected_total", "checksum"): 1,
        ("checkpoint_rejected_total", "missing"): 0,
        ("checkpoint_rejected_total", "torn"): 0,
        ("checkpoint_rejected_total", "unreadable"): 0,
        ("checkpoint_last_step", "storage"): 2,
        ("checkpoint_last_timestamp_seconds", "storage"): 1.7e9 + 1.2,
    }


def test_the_table_and_what_is_exposed_name_the_same_metrics(tmp_path):
    text = scraped(stories.write(tmp_path / "run", stories.KILLED_ONCE))
    assert set(re.findall(r"^# TYPE (\w+) \w+$", text, re.MULTILINE)) == set(FAMILIES)
    assert set(DRAW) == set(FAMILIES)
    kinds = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert kinds == {
        name.removesuffix("_total"): family.kind.value for name, family in FAMILIES.items()
    }


def test_names_and_labels_follow_the_rules():
    for name, family in FAMILIES.items():
        assert re.fullmatch(rf"{PREFIX}[a-z_]+", name)
        assert name.endswith("_total") == (family.kind is Kind.COUNTER)
        assert family.help[0] == family.help[0].upper()
        assert family.help.endswith(".")
        assert not {"job", "instance", "pid", "attempt", "step", "le"} & set(family.labels)


def test_no_two_families_have_one_name_in_openmetrics():
    # There a counter's family is called without `_total`, and a gauge may not be called the same.
    names = [name.removesuffix("_total") for name in FAMILIES]
    assert sorted(names) == sorted(set(names))


def test_promtool_finds_nothing_wrong(tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here (Debian's package prometheus has it)")
    for story in (stories.KILLED_ONCE, stories.TROUBLED, ()):
        text = scraped(stories.write(tmp_path / str(len(story)), story))
        checked = subprocess.run(
            [promtool, "check", "metrics"], input=text.encode(), capture_output=True, check=False
        )
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_after_every_entry_states_sum_to_the_time_elapsed_and_no_counter_falls():
    for story in (stories.KILLED_ONCE, stories.TROUBLED):
        fold, before = Fold(), dict[tuple[str, tuple[str, ...]], float]()
        for entry in stories.entries(story):
            fold.feed(entry)
            present = Present("run", "r1", "cpu", fold, True, (), {})
            counters = {
                (name, labels): float(value)
                for name, family in FAMILIES.items()
                if family.kind is Kind.COUNTER
                for labels, value in DRAW[name](present).items()
                if isinstance(value, int | float)
            }
            elapsed_s = sum(
                value
                for (name, _), value in counters.items()
                if name.endswith("_state_seconds_total")
            )
            assert elapsed_s == pytest.approx(split(fold).wall_ns / 1e9)
            assert all(counters[key] >= value for key, value in before.items())
            before = counters


def test_a_histogram_counts_each_duration_in_every_bucket_that_holds_it(tmp_path):
    told = samples(scraped(stories.write(tmp_path / "run", stories.KILLED_ONCE)))
    buckets = {
        float(labels.split(",")[0]): value
        for (name, labels), value in told.items()
        if name == "restart_duration_seconds_bucket" and labels.endswith(",first_step")
    }
    assert buckets[0.256] == 0
    assert buckets[0.512] == 1
    assert buckets[math.inf] == 1
    assert list(buckets) == sorted(buckets)


def test_nothing_says_that_a_dead_run_trains(tmp_path):
    story = [line for line in stories.KILLED_ONCE if line[0] <= 1540][:-1]
    run_dir = stories.write(tmp_path / "run", story)
    with alive(run_dir, "launcher-0", "rank-0", "rank-1"):
        assert standing(run_dir) == ("work", 1, {"0": 1, "1": 1})
    assert standing(run_dir) == ("down", 0, {"0": 0, "1": 0})
    stories.add(run_dir, [line for line in stories.KILLED_ONCE if line[0] > 1540])
    assert standing(run_dir) == ("finished", 0, {"0": 0, "1": 0})


def standing(run_dir: RunDir) -> tuple[str, float, dict[str, float]]:
    told = samples(scraped(run_dir))
    phases = [labels for (name, labels), value in told.items() if name == "phase" and value]
    assert len(phases) == 1
    ups = {labels: value for (name, labels), value in told.items() if name == "rank_up"}
    return phases[0], told["launcher_up", ""], ups


def test_each_rank_that_is_killed_and_started_again_stays_one_series(tmp_path):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    with alive(run_dir, "rank-1"):
        ups = [key for key in samples(scraped(run_dir)) if key[0] == "rank_up"]
    assert ups == [("rank_up", "0"), ("rank_up", "1")]


def test_a_step_that_was_rolled_back_is_no_longer_the_current_one(tmp_path):
    story = [line for line in stories.KILLED_ONCE if line[0] <= 1900]
    told = samples(scraped(stories.write(tmp_path / "run", story)))
    assert told["step", ""] == 2


@pytest.mark.parametrize(
    ("own_ms", "delay_s"),
    [
        ((30, 50), {"0": 0.0, "1": 0.02}),
        ((40, 30, 50), {"0": 0.0, "1": -0.01, "2": 0.01}),
    ],
)
def test_a_rank_is_late_by_its_own_time_minus_the_lower_median(own_ms, delay_s):
    fold, size = Fold(), len(own_ms)
    happened: list[tuple[int, str, Event]] = [
        (0, "launcher-0", RunStarted("r1", size)),
        (1, "launcher-0", AttemptStarted(size)),
        (2, "rank-0", RestoreStarted()),
        (3, "rank-0", TrainingResumed(0, None)),
    ]
    for number in range(1, 43):  # the first is not compared
        happened += [
            (number + 3, f"rank-{rank}", StepTimed(number, ms * 1_000_000, 0, 0, ms * 1_000_000, 2))
            for rank, ms in enumerate(own_ms)
        ]
    for sequence, (at_s, writer, event) in enumerate(happened):
        fold.feed(Entry(at_s * 10**9, 1, sequence, event, writer))
    slow = str(size - 1)
    for is_led, told in ((True, True), (False, False)):
        now = Present("run", "r1", "cpu", fold, is_led, (), {})
        delays = DRAW["harness_straggler_delay_seconds"](now)
        assert delays == (
            {(rank,): pytest.approx(s) for rank, s in delay_s.items()} if told else {}
        )
        named = DRAW["harness_straggler_named"](now)
        assert named == ({(slow, "compute"): 1.0} if told else {})
        assert DRAW["harness_step_slowdown_ratio"](now) == ({(): 1.0} if told else {})
        waited = DRAW["harness_straggler_wait_seconds_total"](now)
        assert waited == {(): pytest.approx(41 * 2 * delay_s[slow])}


def test_of_many_ranks_the_slowest_are_told_and_how_the_others_are_spread():
    values = {rank: float(rank) for rank in range(1000)}
    slowest = {(str(rank),): float(rank) for rank in range(992, 1000)}
    assert by_rank(values) == {("p50",): 499.0, ("p90",): 899.0, ("p99",): 989.0} | slowest
    earliest = {(str(rank),): float(rank) for rank in range(8)}
    told = by_rank(values, slow_is_low=True)
    assert told == {("p50",): 500.0, ("p90",): 100.0, ("p99",): 10.0} | earliest
    few = {rank: float(rank) for rank in range(512)}
    assert by_rank(few) == {(str(rank),): value for rank, value in few.items()}


def test_when_each_rank_last_got_on_is_told_even_once_it_is_dead(tmp_path):
    run_dir = stories.write(tmp_path / "run", stories.GOING)
    before_s = time.time()
    with SlotWriter(run_dir.slot(0), attempt=1) as slot:
        slot.update(step=3)
    told = samples(scraped(run_dir))
    assert told["rank_up", "0"] == 0
    assert before_s - 0.01 <= told["rank_progress_timestamp_seconds", "0"] <= time.time() + 0.01


def test_a_slot_from_before_the_machine_was_last_started_says_nothing(tmp_path, monkeypatch):
    run_dir = stories.write(tmp_path / "run", stories.GOING)
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic_ns", lambda: 1 << 62)
        with SlotWriter(run_dir.slot(0), attempt=1) as slot:
            slot.update(own_ns=5)
    names = {name for name, _ in samples(scraped(run_dir))}
    assert "rank_progress_timestamp_seconds" not in names


def test_a_save_that_its_attempt_left_behind_is_superseded_by_the_next_ones(tmp_path):
    begun, done = SaveStarted, SaveUnblocked
    story = [line for line in stories.KILLED_ONCE if line[2] < 1 and line[0] != 1200]
    story += [line for line in stories.KILLED_ONCE if line[2] == 1 and line[0] <= 2500]
    story += [
        (2510, "rank-0", 1, begun(4, Tier.STORAGE)),
        (2560, "rank-0", 1, done(4, Tier.STORAGE)),
    ]
    told = samples(scraped(stories.write(tmp_path / "run", story)))
    outcomes = {key[1]: value for key, value in told.items() if key[0] == "checkpoint_saves_total"}
    assert outcomes == {"committed,storage": 0, "failed,storage": 0, "superseded,storage": 1}


def test_the_interval_that_was_chosen_is_told_beside_the_best(tmp_path):
    choice = IntervalChosen(Tier.MEMORY, 40, 20.0, 24.5, {"step_s": 0.5}, "24.5 s is best")
    story = [*stories.KILLED_ONCE, (3590, "rank-0", 2, choice)]
    told = samples(scraped(stories.write(tmp_path / "run", story)))
    assert told["checkpoint_interval_seconds", "chosen,memory"] == 20.0
    assert told["checkpoint_interval_seconds", "optimal,memory"] == 24.5
    assert told["checkpoint_saves_total", "failed,memory"] == 0, "the first that fails is a rise"


def test_the_interval_between_saves_is_work_within_one_attempt(tmp_path):
    story = [line for line in stories.KILLED_ONCE if line[0] < 2400 and line[1] != "injector"]
    for ms, step in ((2100, 4), (2400, 5)):
        story += [
            (ms, "rank-0", 1, StepFinished(step, 0, 8)),
            (ms, "rank-0", 1, SaveStarted(step, Tier.STORAGE)),
            (ms + 50, "rank-0", 1, SaveUnblocked(step, Tier.STORAGE)),
        ]
    told = samples(scraped(stories.write(tmp_path / "run", story)))
    assert told["checkpoint_interval_seconds", "current,storage"] == 0.25
    before = [line for line in story if line[0] < 2400]
    told = samples(scraped(stories.write(tmp_path / "before", before)))
    assert ("checkpoint_interval_seconds", "current,storage") not in told


def test_a_crash_loop_is_one_failure_and_a_preemption_none(tmp_path):
    fold = Fold()
    for entry in stories.entries(stories.KILLED_ONCE[:12]):
        fold.feed(entry)
    for cause in (Cause.SIGNAL, Cause.SIGNAL, Cause.PREEMPTION, Cause.NODE_LOSS, Cause.NODE_LOSS):
        fold.recovery.fail(failed(cause), idle=False, keep=256)
    assert fold.recovery.incidents == {"signal": 1, "preemption": 1, "node_loss": 2}
    seen = failures_seen(fold)
    assert seen is not None
    assert (seen.failures, seen.up_s) == (3, 0.54)


def test_without_a_failure_there_is_a_lower_bound_alone_and_no_best_interval(tmp_path):
    story = [line for line in stories.KILLED_ONCE if line[0] < 1640]
    told = samples(scraped(stories.write(tmp_path / "run", story)))
    assert [labels for name, labels in told if name == "mtbf_seconds"] == ["lower"]
    assert "checkpoint_interval_seconds" not in {name for name, _ in told}


def failed(cause: Cause) -> Restart:
    return Restart(0, cause, "", None, 0, None, 1)


def test_slots_of_an_attempt_that_is_over_say_nothing(tmp_path):
    run_dir = stories.write(tmp_path / "run", stories.GOING)
    for rank, attempt in ((0, 1), (1, 0)):
        with SlotWriter(run_dir.slot(rank), attempt=attempt) as slot:
            slot.update(step=5)
    with alive(run_dir, "launcher-0"):
        told = samples(scraped(run_dir))
    name = "rank_progress_timestamp_seconds"
    assert [labels for family, labels in told if family == name] == ["0"]


def test_a_run_in_which_nothing_has_happened_yet_has_no_figures_and_no_errors(tmp_path):
    told = samples(scraped(stories.write(tmp_path / "run", ())))
    assert told["phase", "down"] == 1
    assert told["launcher_up", ""] == 0
    assert not {"goodput_ratio", "loss", "run_start_timestamp_seconds"} & {name for name, _ in told}


def test_a_directory_name_that_is_no_unicode_still_makes_labels(tmp_path):
    run_dir = stories.write(tmp_path / "b\udcff", stories.KILLED_ONCE)
    assert 'job_name="b\ufffd"' in scraped(run_dir)


def test_every_phase_has_its_state_and_only_those_that_last(tmp_path):
    told = samples(scraped(stories.write(tmp_path / "run", stories.KILLED_ONCE)))
    states = {labels for name, labels in told if name == "state_seconds_total"}
    assert states == {phase.value for phase in Phase} - {"finished"}
