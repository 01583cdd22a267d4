"""The checks for GPUs, played through on a CPU; and what is refused."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from launch.acceptance.bench import Bench
from launch.acceptance.checks import CHECKS, Outcome, Verdict, judge
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


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_every_check_passes_on_a_cpu_where_no_gpu_is_needed(zygote: Zygote, tmp_path: Path, capsys):
    def in_zygote(arguments: Sequence[str], within_s: float) -> int:
        return zygote.launch(arguments, tmp_path, {"CUDA_VISIBLE_DEVICES": ""}).wait(within_s)

    report = checked(Bench("cpu", 2, tmp_path, in_zygote, 240.0), list(CHECKS), [])
    told = {one["check"]: one["outcome"] for one in report["checks"]}
    assert told == dict.fromkeys(CHECKS, "pass"), report
    assert (report["outcome"], report["device"], report["ranks"]) == ("pass", "cpu", 2)
    figures = {one["check"]: one["figures"] for one in report["checks"]}
    assert figures["kills"]["back_s"]["count"] == 3
    assert figures["overlap"]["blocking_ms"] > 0
    assert figures["overhead"]["ratio"] > 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[:2] for line in lines] == [["pass", name] for name in CHECKS]


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


def test_a_command_that_takes_too_long_is_ended():
    with pytest.raises(TimeoutError):
        run_harness(["--version"], 0.001)
    assert run_harness(["--version"], 60.0) == DONE
