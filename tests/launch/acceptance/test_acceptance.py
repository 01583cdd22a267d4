"""The checks for GPUs, played through on a CPU; and what is refused."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from harness.events import Entry, Event, SaveStarted, StepFinished, Tier, TrainingFinished
from harness.lines import decode
from harness.rundir import RunDir
from launch.acceptance.bench import Bench
from launch.acceptance.checks import CHECKS, Outcome, Verdict, against, held_up_ms, judge
from launch.acceptance.command import DONE, NO, USAGE, checked, gpu_acceptance, run_harness
from tests.zygote import Zygote

TIMES_UP = Verdict(Outcome.SKIPPED, "time was over before it began")


def failing(arguments: Sequence[str], within_s: float) -> int:
    """Every run ends with a status of its own."""
    assert arguments[0] == "run"
    assert within_s > 0
    return 3


def late(_arguments: Sequence[str], _within_s: float) -> int:
    """No run is done in time."""
    raise TimeoutError


def restarted(arguments: Sequence[str], _within_s: float) -> int:
    """Every run ends well, but no attempt of it did all of the steps."""
    log = RunDir.at(Path(arguments[2])).log(1, 0, "out")
    log.parent.mkdir(parents=True)
    log.write_text("")
    return 0


def interrupted(arguments: Sequence[str], _within_s: float) -> int:
    """Ctrl-C while there is something of the first run already."""
    Path(arguments[2]).mkdir()
    raise KeyboardInterrupt


def log_of(*told: tuple[float, Event]) -> list[Entry]:
    """Events of rank 0, each at its millisecond."""
    return [
        Entry(int(at_ms * 1e6), 1, number, event, "rank-0")
        for number, (at_ms, event) in enumerate(told)
    ]


def done(step: int) -> StepFinished:
    return StepFinished(step, 0, 0)


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_every_check_passes_on_a_cpu_where_no_gpu_is_needed(zygote: Zygote, tmp_path: Path, capsys):
    asked: dict[str, Sequence[str]] = {}

    def in_zygote(arguments: Sequence[str], within_s: float) -> int:
        asked[Path(arguments[2]).name] = arguments
        return zygote.launch(arguments, tmp_path, {"CUDA_VISIBLE_DEVICES": ""}).wait(within_s)

    report = checked(Bench("cpu", 2, tmp_path, in_zygote, 240.0), list(CHECKS), [])
    told = {one["check"]: one["outcome"] for one in report["checks"]}
    assert told == dict.fromkeys(CHECKS, "pass"), report
    assert (report["outcome"], report["device"], report["ranks"]) == ("pass", "cpu", 2)
    figures = {one["check"]: one["figures"] for one in report["checks"]}
    assert figures["kills"]["back_s"]["count"] == 3
    assert figures["overlap"].keys() == {"blocking_ms", "beside_ms"}
    assert {name for name, flags in asked.items() if "--settle" in flags} == {"twin", "overlapped"}
    assert list(asked)[-4:] == ["bare-0", "timed-0", "timed-1", "bare-1"]
    assert figures["overhead"]["ratio"] > 0
    assert figures["overhead"]["noise"] >= 1
    for name in ("timed-0", "timed-1"):
        assert_ends_with_the_last_step(RunDir.at(tmp_path / name))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[:2] for line in lines] == [["pass", name] for name in CHECKS]


def assert_ends_with_the_last_step(run: RunDir) -> None:
    """What is timed is over before the last state is saved."""
    (told,) = re.findall(r"ended_ns (\d+)", run.log(1, 0, "out").read_text())
    # In its file an entry has the monotonic clock, as the job's own has it.
    lines = map(decode, run.event_file("rank-0").read_bytes().splitlines())
    at_ns = {type(it.event): it.at_ns for it in lines if isinstance(it, Entry)}
    assert int(told) <= at_ns[StepFinished] < at_ns[TrainingFinished]


def test_a_copy_counts_in_the_step_whose_device_waits_for_it():
    entries = log_of(
        *((0.0, done(1)), (10.0, done(2))),
        # The host goes on at once; the device has 7 ms of it to do.
        *((10.1, SaveStarted(2, Tier.MEMORY)), (27.0, done(3)), (37.0, done(4))),
        # Nor is a durable save one of those that are looked for.
        *((37.1, SaveStarted(4, Tier.MEMORY)), (37.2, SaveStarted(4, Tier.STORAGE))),
        *((900.0, done(5)), (910.0, done(6))),
    )
    assert held_up_ms(entries) == 7.0
    assert held_up_ms(entries[:2]) is None
    assert held_up_ms([]) is None


def test_a_limit_is_judged_only_as_far_as_the_same_beside_itself_can_tell():
    assert against(1.02, 1.01, 1.005) is Outcome.PASS
    assert against(1.02, 1.0, 1.02) is Outcome.PASS
    assert against(1.02, 1.01, 1.02) is Outcome.UNRESOLVED
    assert against(1.02, 1.03, 1.02) is Outcome.UNRESOLVED
    assert against(1.02, 1.03, 1.005) is Outcome.FAIL


@pytest.mark.skipif(torch.cuda.device_count() >= 2, reason="here are GPUs enough")
def test_a_machine_without_gpus_is_refused_with_the_way_out(capsys):
    assert gpu_acceptance([]) == USAGE == 2
    assert capsys.readouterr().err == (
        f"harness gpu-acceptance: this needs a node with at least 2 GPUs, and torch sees"
        f" {torch.cuda.device_count()}; --device cpu plays the same checks through on a CPU, small\n"
    )


def test_a_check_that_does_not_exist_is_refused_with_those_that_do(capsys):
    assert gpu_acceptance(["--device", "cpu", "--only", "kills,speed"]) == USAGE
    known = "exactness, kills, group, overlap, overhead"
    assert f"unknown check speed; known: {known}" in capsys.readouterr().err


def test_a_run_that_fails_or_is_late_fails_its_check_with_the_reason(tmp_path: Path):
    bench = Bench("cpu", 2, tmp_path, failing, 60.0)
    reason = f"the run 'twin' ended with status 3: see {tmp_path}/twin/logs"
    assert judge("exactness", bench) == Verdict(Outcome.FAIL, reason)
    reason = "the run 'bare-0' was not done when time was over"
    assert judge("overhead", Bench("cpu", 2, tmp_path, late, 60.0)) == Verdict(Outcome.FAIL, reason)


def test_a_timed_run_that_was_restarted_fails_its_check_and_the_report_goes_on(tmp_path: Path):
    report = checked(Bench("cpu", 2, tmp_path, restarted, 60.0), ["overhead"], [])
    assert [one["reason"] for one in report["checks"]] == [
        f"the run 'bare-0' was restarted, so its steps were not timed: see {tmp_path}/bare-0/logs"
    ]
    assert report["outcome"] == "fail"


def test_what_cannot_be_read_fails_its_check(tmp_path: Path):
    def silent(_arguments: Sequence[str], _within_s: float) -> int:
        return 0

    verdict = judge("overhead", Bench("cpu", 2, tmp_path, silent, 60.0))
    assert verdict.outcome is Outcome.FAIL
    assert "No such file" in verdict.reason


def test_what_is_not_begun_in_time_is_skipped_and_the_whole_has_not_passed(tmp_path: Path):
    bench = Bench("cpu", 2, tmp_path, failing, 0.0)
    assert [judge(name, bench) for name in CHECKS] == [TIMES_UP] * len(CHECKS)
    assert checked(bench, ["kills"], [])["outcome"] == "fail"


def test_a_failed_check_ends_in_status_1_and_keeps_its_runs(monkeypatch, tmp_path: Path, capsys):
    monkeypatch.setattr("launch.acceptance.command.run_harness", failing)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_acceptance(["--device", "cpu", "--only", "exactness"]) == NO
    told = capsys.readouterr()
    assert json.loads(told.out)["checks"][0]["reason"].startswith(
        "the run 'twin' ended with status 3"
    )
    (kept,) = tmp_path.iterdir()
    assert f"its runs are kept in {kept}" in told.err


def test_a_command_that_is_interrupted_leaves_nothing(monkeypatch, tmp_path: Path):
    monkeypatch.setattr("launch.acceptance.command.run_harness", interrupted)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(KeyboardInterrupt):
        gpu_acceptance(["--device", "cpu", "--only", "exactness"])
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_takes_too_long_is_ended():
    with pytest.raises(TimeoutError):
        run_harness(["--version"], 0.001)
    assert run_harness(["--version"], 60.0) == DONE
