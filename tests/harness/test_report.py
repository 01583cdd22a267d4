import fcntl
import json
import math
from dataclasses import replace

import pytest

from harness.events import (
    ArithmeticKnown,
    Cause,
    EvaluationFinished,
    FailureDetected,
    FaultConfirmed,
    FaultInjected,
    IntervalChosen,
    Outcome,
    RunFinished,
    RunStarted,
    SaveUnblocked,
    StepFinished,
    Tier,
)
from harness.phases import Phase
from harness.report import report, summary, tell
from harness.report.model import Standing
from harness.report.spread import Spread, duration
from harness.report.terminal import rendered
from harness.rundir import RunDir
from harness.timeline import timeline
from harness.verify import final_digest
from tests.harness import stories
from tests.harness.runs import log, start

PARTS = (
    "detect",
    "stacks",
    "teardown",
    "rendezvous",
    "spawn",
    "init",
    "restore",
    "group",
    "setup",
    "warmup",
)


def once(duration_s: float) -> dict[str, float]:
    return {"count": 1, "median": duration_s, "p90": duration_s, "max": duration_s}


NEVER = {"count": 0, "median": None, "p90": None, "max": None}


def test_a_run_that_was_killed_once_is_told_in_full(tmp_path):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    parts_s = (0.2, 0.005, 0.015, 0.02, 0.02, 0.06, 0.015, 0.005, 0.02, 0.1)
    told = report(run_dir).to_json()
    assert told == {
        "schema": 1,
        "run_id": "r1",
        "tool": "harness",
        "world_size": 2,
        "outcome": "finished",
        "reason": "",
        "phase": "finished",
        "goodput": 0.375,
        "goodput_rests_on_failures": 1,
        "wall_s": 2.8,
        "wall_ns": 2_800_000_000,
        "state_seconds": {
            "startup": 0.2,
            "restore": 0.14,
            "warmup": 0.3,
            "work": 1.45,
            "evaluation": 0.2,
            "save_stall": 0.09,
            "interrupted": 0.1,
            "restart": 0.12,
            "drain": 0.2,
            "down": 0.0,
        },
        "state_ns": {
            "startup": 200_000_000,
            "restore": 140_000_000,
            "warmup": 300_000_000,
            "work": 1_450_000_000,
            "evaluation": 200_000_000,
            "save_stall": 90_000_000,
            "interrupted": 100_000_000,
            "restart": 120_000_000,
            "drain": 200_000_000,
            "down": 0,
        },
        "lost_work_s": 0.6,
        "badput_s": {"work": 1.05, "checkpoint": 0.09, "lost": 0.7, "restart": 0.96},
        "unsettled_s": 0.0,
        "attempts": 2,
        "lives": 1,
        "manual_interventions": 0,
        "steps": 4,
        "useful_steps": 4,
        "redone_steps": 1,
        "lost_steps": 1,
        "tokens": 500,
        "restarts": 1,
        "burnt_restarts": 0,
        "restart_s": {
            **once(0.46),
            "phases": {part: once(s) for part, s in zip(PARTS, parts_s, strict=True)},
        },
        "restart_since_fault_s": once(0.3),
        "regaining_s": once(0.0),
        "restart_records": [
            {
                "number": 1,
                "attempt": 0,
                "cause": "signal",
                "rank": 1,
                "reason": "killed by SIGKILL",
                "duration_s": 0.46,
                "since_fault_s": 0.3,
                "regaining_s": 0.0,
                "lost_steps": 1,
                "lost_s": 0.6,
                "resumed_step": 2,
                "tier": "storage",
                "burnt": False,
                "faults": ["1"],
                "phase_s": dict(zip(PARTS, parts_s, strict=True)),
            }
        ],
        "faults": [
            {
                "id": "1",
                "kind": "kill",
                "target": "rank 1",
                "tape_s": None,
                "at_s": 1.7,
                "state": "confirmed",
                "deferred": False,
                "detail": "process 71 is gone",
                "restart": 1,
                "became": "confirmed, led to restart 1",
            },
            {
                "id": "2",
                "kind": "",
                "target": "",
                "tape_s": None,
                "at_s": None,
                "state": "skipped",
                "deferred": False,
                "detail": "the run has ended",
                "restart": None,
                "became": "skipped, the run has ended",
            },
        ],
        "checkpoints": {
            "committed": 2,
            "copies": 0,
            "failed": 0,
            "rejected": 0,
            "rejections": [],
            "last_step": 4,
            "bytes": 8_000_000,
            "stall_s": 0.09,
            "mean_commit_s": 0.195,
            "intervals": {},
        },
        "loss": 4.0,
        "validation_loss": {
            "count": 2,
            "first": {"step": 3, "loss": 4.75},
            "last": {"step": 4, "loss": 3.5},
        },
        "health": {
            "step": None,
            "grad_norm": None,
            "clip_norm": None,
            "clips": 0,
            "clipped": 0,
            "update_to_weight": {},
            "nonfinite_steps": 0,
            "nonfinite": [],
            "loss_spikes": 0,
            "last_loss_spike": None,
            "replicas": {"made": 0, "unequal": 0, "mismatches": []},
            "audits": {"made": 0, "unequal": 0, "mismatches": []},
        },
        "final_digest": final_digest(stories.entries(stories.KILLED_ONCE)),
        "helpers": {},
        "stragglers": {
            "compared": 0,
            "waited_s": 0.0,
            "named": 0,
            "records": [],
            "slowdown": None,
            "all_ranks_slow": False,
        },
        "tokens_per_s": 500 / 1.45,
        "mfu": {},
        "notes": [],
    }
    assert told["final_digest"] is not None
    assert sum(told["state_ns"].values()) == told["wall_ns"]
    assert sum(told["badput_s"].values()) == pytest.approx(told["wall_s"])


KILLED_ONCE_TEXT = """\
run demo  finished  2 ranks, 2 attempts, wall time 2.80 s
goodput 37.5% (from 1 failure: their cost in the long run is known to ±100%)

where the time went
  work kept    1.050 s  37.5%  ██████████████████████████████████
  work lost    0.600 s  21.4%  ███████████████████▍
  startup      0.200 s   7.1%  ██████▌
  restore      0.140 s   5.0%  ████▌
  warmup       0.300 s  10.7%  █████████▊
  save stall   0.090 s   3.2%  ██▉
  interrupted  0.100 s   3.6%  ███▎
  restart      0.120 s   4.3%  ███▉
  drain        0.200 s   7.1%  ██████▌
  sum          2.800 s
  in four kinds: work 37.5%, checkpoint 3.2%, lost 25.0%, restart 34.3%

phase by phase
  sssssrrrwwwwww█████████████c░░░░░░░░░░░░░░░░░iixRRrrww███████████▓▓▓c██ddddd
  █ work  ▓ evaluation  ░ lost  s startup  r restore  w warmup  c save stall  i
  interrupted  R restart  d drain  x failure
  one cell: 37 ms

restarts
  seconds                      count  median    p90    max
  last step → next first one       1   0.460  0.460  0.460
    → detected                     1   0.200  0.200  0.200  ███████▍
    → stacks dumped                1   0.005  0.005  0.005  ▏
    → torn down                    1   0.015  0.015  0.015  ▌
    → next attempt begun           1   0.020  0.020  0.020  ▊
    → spawned                      1   0.020  0.020  0.020  ▊
    → joined                       1   0.060  0.060  0.060  ██▎
    → state read                   1   0.015  0.015  0.015  ▌
    → group up                     1   0.005  0.005  0.005  ▏
    → state in place               1   0.020  0.020  0.020  ▊
    → first step finished          1   0.100  0.100  0.100  ███▊
    then: lost steps regained      1   0.000  0.000  0.000
  fault → next first step          1   0.300  0.300  0.300

  #  attempt  back, s  resumed at    lost  what happened
  1        0    0.460  2, storage  1 step  rank 1: killed by SIGKILL (fault 1)

faults
      at  id  kind  target  what became of it
  1.70 s  1   kill  rank 1  confirmed, led to restart 1
          2                 skipped, the run has ended

training
  steps: 4 held, 1 lost, 1 redone
  tokens: 500, 345 a second of work
  validation loss: 4.7500 (step 3) → 3.5000 (step 4)
  last training loss: 4.0000
  checkpoints: 2 committed, the last at step 4, 0 failed, 0 rejected; 8.0 MB,
  195 ms each to commit; training waited 90 ms
  final digest: 9c8db942bc86ea0e9e7bcaf6bb3c2243
"""


def test_people_get_it_on_one_screen_without_a_terminal(tmp_path):
    told = report(stories.write(tmp_path / "run", stories.KILLED_ONCE))
    assert rendered(told, "demo") == KILLED_ONCE_TEXT


def test_no_line_is_wider_than_the_terminal_and_colours_are_for_terminals_alone(tmp_path):
    story = [
        *stories.TROUBLED[:-1],
        (1900, "launcher-0", 1, RunFinished(Outcome.FAILED, "no " * 90)),
    ]
    told = report(stories.write(tmp_path / "run", story))
    for width in (60, 80, 120):
        plain = rendered(told, "demo", width=width)
        assert max(len(line) for line in plain.splitlines()) <= width
        assert "\x1b" not in plain
    assert "\x1b[" in rendered(told, "demo", color=True)


def test_a_run_that_failed_says_what_was_failed_rejected_burnt_and_deferred(tmp_path):
    told = report(stories.write(tmp_path / "run", stories.TROUBLED)).to_json()
    picked = {
        key: told[key]
        for key in ("outcome", "reason", "steps", "restarts", "burnt_restarts", "loss")
    }
    assert picked == {
        "outcome": "failed",
        "reason": "2 failures within 5 min",
        "steps": 3,
        "restarts": 1,
        "burnt_restarts": 1,
        "loss": 4.5,
    }
    assert told["restart_s"] == {
        **NEVER,
        "phases": {
            part: once({"detect": 0.2, "teardown": 0.02, "rendezvous": 0.02, "spawn": 0.08}[part])
            if part in ("detect", "teardown", "rendezvous", "spawn")
            else once(0.03)
            if part == "restore"
            else NEVER
            for part in PARTS
        },
    }
    assert told["checkpoints"] == {
        "committed": 1,
        "copies": 0,
        "failed": 1,
        "rejected": 1,
        "rejections": ["step 2 of attempt 0 (checksum): shard 0 differs"],
        "last_step": 2,
        "bytes": 4_000_000,
        "stall_s": 0.04,
        "mean_commit_s": 0.2,
        "intervals": {},
    }
    assert [fault["became"] for fault in told["faults"]] == ["deferred, its target is down"]


def test_whether_a_run_goes_on_is_told_by_the_lock_on_its_launchers_file(tmp_path):
    run_dir = stories.write(tmp_path / "run", stories.GOING)
    lost = report(run_dir)
    assert (lost.standing, lost.phase) == (Standing.LOST, "down")
    assert lost.reason == "its launcher died without a word"
    with run_dir.event_file("launcher-0").open() as launcher:
        fcntl.flock(launcher, fcntl.LOCK_EX)
        going = report(run_dir)
    assert (going.standing, going.reason, going.phase) == (Standing.GOING, "", "save_stall")
    assert (going.split.wall_ns, going.unsettled_ns) == (2_500_000_000, 10_000_000)


def test_an_empty_run_has_nothing_to_tell(tmp_path):
    told = report(stories.write(tmp_path / "run", ()))
    assert rendered(told, "demo") == "run demo  empty  nothing has happened yet\n"
    assert (told.to_json()["goodput"], told.to_json()["wall_s"]) == (0.0, 0.0)


def test_a_log_cut_anywhere_is_reported_as_far_as_it_goes(tmp_path):
    whole = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    contents = {path.name: path.read_bytes() for path in whole.events.iterdir()}
    for name, content in contents.items():
        for length in range(0, len(content), 197):
            (whole.events / name).write_bytes(content[:length])
            told = report(whole)
            assert sum(told.split.state_ns.values()) == told.split.wall_ns
            assert summary(whole)
        (whole.events / name).write_bytes(content)


def test_an_entry_that_cannot_have_happened_is_left_out_and_named(tmp_path):
    stray = (1100, "rank-0", 0, SaveUnblocked(2, Tier.STORAGE))
    told = report(stories.write(tmp_path / "run", [*stories.KILLED_ONCE, stray]))
    clean = report(stories.write(tmp_path / "clean", stories.KILLED_ONCE))
    assert len(told.notes) == 1
    assert told.notes[0].startswith("left out: SaveUnblocked of attempt 0 cannot happen in phase")
    assert replace(told, notes=()) == clean


def test_settings_that_cannot_be_read_are_named_and_stop_nothing(tmp_path):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    run_dir.settings.write_text("schema = 99")
    assert "schema 99 is newer than 1" in report(run_dir).notes[0]


def test_faults_of_the_tape_that_never_came_are_told_too(tmp_path):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    lines = [
        '{"schema": 1, "seed": 0, "plan": "p", "world_size": 2, "faults": 3}',
        '{"id": "1", "at_s": 0.5, "kind": "kill", "target": "rank 1"}',
        '{"id": "2", "at_s": 1.5, "kind": "kill", "target": "rank 0"}',
        '{"id": "3", "at_s": 9.5, "kind": "kill", "target": "rank 0"}',
        '{"id": "4", "at_s"',
    ]
    run_dir.tape.write_text("\n".join(lines))
    faults = [
        (one.id, one.kind, one.target, one.tape_s, one.became) for one in report(run_dir).faults
    ]
    assert faults == [
        ("1", "kill", "rank 1", 0.5, "confirmed, led to restart 1"),
        ("2", "kill", "rank 0", 1.5, "skipped, the run has ended"),
        ("3", "kill", "rank 0", 9.5, "planned"),
    ]


def test_figures_that_are_no_numbers_still_make_json(tmp_path):
    story = [
        *[line for line in stories.KILLED_ONCE if line[0] < 1640],
        (1640, "rank-0", 0, EvaluationFinished(3, math.inf)),
        (1640, "rank-0", 0, ArithmeticKnown(-math.inf, math.nan, 1e12)),
        (1640, "rank-0", 0, IntervalChosen(Tier.STORAGE, 4, math.inf, math.nan)),
        (1650, "rank-0", 0, StepFinished(4, 24, 32, loss=math.nan, loss_step=4)),
    ]
    run_dir = stories.write(tmp_path / "run", story)
    told = json.loads(json.dumps(report(run_dir).to_json(), allow_nan=False))
    assert told["loss"] == "NaN"
    assert told["mfu"] == {"counted": "NaN", "formula": "-Infinity"}
    interval = told["checkpoints"]["intervals"]["storage"]
    assert (interval["seconds"], interval["optimal_s"]) == ("Infinity", "NaN")
    assert told["validation_loss"]["last"] == {"step": 3, "loss": "Infinity"}
    assert "last training loss: nan" in summary(run_dir)


def test_a_run_taken_up_again_counts_the_time_between_as_down(tmp_path):
    story = [
        *stories.TROUBLED,
        (5000, "launcher-0", 1, RunStarted("r1", 2)),
        (5010, "launcher-0", 1, RunFinished(Outcome.INTERRUPTED)),
    ]
    run_dir = stories.write(tmp_path / "run", story)
    told = report(run_dir)
    assert told.split.state_ns[Phase.DOWN] == 3_100_000_000
    assert (told.lives, told.interventions) == (2, 1)
    assert "2 launches" in summary(run_dir).splitlines()[0]


def test_a_run_without_a_failure_says_what_its_goodput_does_not(tmp_path):
    story = [line for line in stories.KILLED_ONCE if line[0] < 1640]
    run_dir = stories.write(tmp_path / "run", story)
    assert "no failure in it: it does not say what one costs" in summary(run_dir)


def test_a_spread_takes_its_p90_from_the_durations_themselves():
    assert Spread.of([]) == Spread(0)
    assert Spread.of([7]) == Spread(1, 7, 7, 7)
    assert Spread.of([4, 1, 3, 2]) == Spread(4, 2, 4, 4)
    assert Spread.of(range(1, 101)) == Spread(100, 50, 90, 100)


def test_durations_are_written_in_the_units_people_use():
    lengths_ns = (0, 37_000_000, 2_800_000_000, 59_940_000_000, 61_000_000_000, 7_380_000_000_000)
    assert [duration(ns) for ns in lengths_ns] == [
        "0 ms",
        "37 ms",
        "2.80 s",
        "59.9 s",
        "1 min 1 s",
        "2 h 3 min",
    ]


def test_a_report_of_nothing_at_all_is_a_report(tmp_path):
    assert report(RunDir.at(tmp_path)).standing is Standing.EMPTY


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_column_is_lost_and_no_cell_is_cut_on_a_narrow_terminal(width):
    target = "store write step-00000020-1/shard-00001-of-00002.safetensors"
    detail = "spoilt one call of four, and the writer tried it again after half a second"
    reason = "raised RuntimeError: a message that is longer than any terminal of eighty columns has"
    quiet = [line for line in stories.KILLED_ONCE if line[1] != "injector"]
    story = [
        *(line for line in quiet if line[0] < 1740),
        (1700, "injector", 0, FaultInjected("s1.1", "store.short_write", target)),
        (1705, "injector", 0, FaultConfirmed("s1.1", detail)),
        (1740, "launcher-0", 0, FailureDetected(1, Cause.EXCEPTION, reason)),
        *(line for line in quiet if line[0] > 1740),
    ]
    told = tell(timeline(stories.entries(story)), is_led=False)
    text = rendered(told, "run", width=width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert _cell(text, "target", "what became") == target.replace(" ", "")
    became = _cell(text, "what became", None).removeprefix("ofit")  # a head may be folded as well
    assert became == f"confirmed,{detail}".replace(" ", "")
    assert f"rank1:{reason}".replace(" ", "") in _cell(text, "what happened", None)


def _cell(text: str, head: str, following: str | None) -> str:
    """What stands below `head` up to the next empty line, without the spaces that folding moved."""
    lines = text.splitlines()
    at, start = _column(lines, head)
    end = None if following is None else _column(lines, following)[1]
    below = lines[at + 1 :]
    rows = below[: below.index("") if "" in below else None]
    return "".join(line[start:end] for line in rows).replace(" ", "")


def _column(lines: list[str], head: str) -> tuple[int, int]:
    """In which line and column `head` begins."""
    return next((at, line.index(head)) for at, line in enumerate(lines) if head in line)


def test_how_often_the_state_is_saved_is_told_with_its_reason(tmp_path):
    chosen = IntervalChosen(Tier.STORAGE, 40, 20.0, 24.5, {"step_s": 0.5}, "24.5 s is best")
    earlier = replace(chosen, steps=80, reason="no save was measured yet")
    story = log(*start(), (9, 1, earlier), (10, 1, chosen))
    told = tell(timeline(story), is_led=True)
    assert "to storage every 40 steps (20.0 s): 24.5 s is best\n" in rendered(told, "demo")
    assert told.to_json()["checkpoints"]["intervals"] == {
        "storage": {
            "steps": 40,
            "seconds": 20.0,
            "optimal_s": 24.5,
            "inputs": {"step_s": 0.5},
            "reason": "24.5 s is best",
        }
    }


@pytest.mark.parametrize("outcome", [Outcome.INTERRUPTED, Outcome.DRAINED, Outcome.FAILED])
@pytest.mark.parametrize(
    ("until", "said"),
    [
        (1100, "2 steps not in the storage, which has nothing"),
        (1300, None),
        (1600, "1 step not in the storage, which has step 2"),
    ],
)
def test_a_run_that_was_left_says_what_it_has_to_do_again(tmp_path, outcome, until, said):
    story = [line for line in stories.KILLED_ONCE if line[0] < until]
    run_dir = stories.write(
        tmp_path / "run", [*story, (until, "launcher-0", 0, RunFinished(outcome))]
    )
    lines = [line.strip() for line in summary(run_dir).splitlines()]
    assert [line for line in lines if "not in the storage" in line] == ([said] if said else [])
