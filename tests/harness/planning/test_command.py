"""`harness plan` as people call it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.events import SCHEMA, Cause, Entry, Header
from harness.fleet import expected_step
from harness.journal import encode
from harness.rundir import RunDir
from tests.harness.planning.runs import failing, many_causes
from tests.harness.stories import KILLED_ONCE, write

DONE, USAGE = 0, 2
ASKED = [
    *("--gpus", "16384..100000", "--mtbf-per-gpu", "50677h", "--state", "4GB/gpu"),
    *("--storage", "2TB/s", "--restart", "10min"),
]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == DONE
    of: dict[str, Any] = json.loads(capsys.readouterr().out)
    return of


def written(path: Path, entries: Sequence[Entry]) -> str:
    run_dir = RunDir.at(path)
    run_dir.create()
    with run_dir.event_file("rank-0").open("ab") as out:
        out.write(encode(Header(SCHEMA, "r", "rank-0", "here", "boot", 1, 0, 0)))
        for entry in entries:
            out.write(encode(entry))
    return str(path)


def test_a_large_job_loses_to_failures_what_its_plan_says(capsys):
    of = told(capsys, *ASKED, "--price", "2.5/gpu-hour", "--target", "0.95")
    assert [one["gpus"] for one in of["sizes"]] == [16_384, 32_768, 65_536, 100_000]
    first = of["sizes"][0]
    assert first["mtbf_s"] / 3600 == pytest.approx(3.0931, abs=1e-4)
    assert first["save_s"] == pytest.approx(32.768)
    assert first["interval_s"] / 60 == pytest.approx(13.88, abs=0.01)
    assert first["goodput"] == pytest.approx(0.878, abs=5e-4)
    lost = first["lost_gpu_hours_per_day"]
    assert sum(lost.values()) == pytest.approx((1 - first["goodput"]) * 16_384 * 24)
    assert first["lost_money_per_day"]["restarts"] == pytest.approx(2.5 * lost["restarts"])
    assert first["needs"]["restart_at_most_s"] is None
    assert of["missing"] == []


def test_people_are_told_each_size_the_best_lever_and_what_is_unknown(capsys):
    assert main(["plan", *ASKED, "--price", "2.5/gpu-hour", "--target", "0.9"]) == DONE
    out = capsys.readouterr().out
    assert "each GPU fails once in 5.78 years (50,677 h)" in out
    assert "16,384       3.09 h" in out
    assert "16,384 GPUs: most pays: memory tier on a peer, +5.0 points" in out
    assert "remove the slowest 0.1%: UNKNOWN, --stragglers missing" in out
    assert (
        "16,384 GPUs: restart ≤ 5.2 min; save ≤ 15.3 s; MTBF ≥ 4.21 h (each GPU 7.86 years)" in out
    )
    assert "serving of the failures: node 0.23, peer 0.8" in out


def test_a_save_that_blocks_for_less_than_it_writes_is_durable_later(capsys):
    of = told(capsys, *("--gpus", "16384", *ASKED[2:]), "--save", "2s")["sizes"][0]
    assert (of["save_s"], of["commit_s"]) == (2, pytest.approx(30.768))


def test_a_share_of_the_failures_can_be_said(capsys):
    some = [*ASKED, "--memory-tier", "peer"]
    served = told(capsys, *some)["sizes"][0]["goodput"]
    fewer = told(capsys, *some, "--memory-share", "0.5")["sizes"][0]["goodput"]
    assert fewer < served
    assert main(["plan", *some, "--memory-share", "0.5"]) == DONE
    assert "serving 0.5 of the failures" in capsys.readouterr().out


def test_storage_grows_with_the_job_where_it_is_said_to(capsys):
    whole = ["--mtbf-per-gpu", "50677h", "--gpus", "100,200", "--state", "4GB/gpu"]
    saves = [one["save_s"] for one in told(capsys, *whole, "--storage", "100GB/s")["sizes"]]
    assert saves == [4, 8]
    saves = [one["save_s"] for one in told(capsys, *whole, "--storage", "1GB/s/gpu")["sizes"]]
    assert saves == [4, 4]


def test_a_target_that_is_there_says_how_long_it_holds(capsys):
    assert main(["plan", "--preset", "llama3", "--target", "0.8"]) == DONE
    assert "87.8% is there already; it holds with restart" in capsys.readouterr().out


def test_a_computation_takes_as_many_days_as_the_textbook_says(capsys):
    rest = ("--flops", "3.8e25", "--per-gpu", "400TFLOP/s")
    assert main(["plan", "--preset", "llama3", *rest]) == DONE
    out = capsys.readouterr().out
    assert "16,384 GPUs: 67.1 days of uninterrupted compute; 76.5 days at goodput 87.8%" in out
    assert "5.78 years" in out
    assert "3.09 h" in out


def test_unequal_devices_are_waited_for_and_removing_the_slowest_pays(capsys):
    noisy, one_slow = expected_step(16_384, 0, 1.0, 0.02), expected_step(16_383, 1, 2.0, 0.02)
    some_slow = noisy + (one_slow - noisy) * (1 - 0.9999**16_384)
    for stragglers, slowdown in [("0.02", noisy), ("0.02,0.0001,2", some_slow)]:
        first = told(capsys, *ASKED, "--stragglers", stragglers)["sizes"][0]
        assert first["effective"] == pytest.approx(first["goodput"] / slowdown)
        gain = first["goodput"] / noisy - first["effective"]
        (lever,) = [one for one in first["levers"] if one["name"] == "remove the slowest 0.1%"]
        assert lever["gain"] == pytest.approx(gain, abs=1e-9)


@pytest.mark.parametrize(("gpus", "hours"), [("100000", 0.5), ("8", 6250)])
def test_a_device_is_not_a_job(capsys, gpus, hours):
    of = told(capsys, "--gpus", gpus, "--mtbf-per-gpu", "50000h")
    assert of["sizes"][0]["mtbf_s"] / 3600 == hours
    assert of["sizes"][0]["goodput"] is None


def test_four_ranks_of_one_node_fail_once_with_it(capsys):
    rest = ("--mtbf-per-node", "1000h", "--save", "30s", "--restart", "5min")
    of = told(capsys, "--gpus", "4,8,16", *rest)
    assert [one["mtbf_s"] / 3600 for one in of["sizes"]] == [1000, 1000, 500]


def test_a_mean_that_no_gpu_has_is_pointed_at(capsys):
    rest = ("--mtbf-job", "50677h", "--save", "33s", "--restart", "10min")
    assert main(["plan", "--gpus", "16384", *rest]) == DONE
    assert "is ONE GPU's, say --mtbf-per-gpu" in capsys.readouterr().out


def test_what_is_missing_is_unknown_and_named(capsys):
    of = told(capsys, "--gpus", "64", "--mtbf-per-gpu", "50000h", "--save", "30s")
    assert of["missing"] == ["--restart"]
    assert of["sizes"][0]["goodput"] is None
    assert of["sizes"][0]["interval_s"] is not None
    assert main(["plan", "--gpus", "64"]) == DONE
    out = capsys.readouterr().out
    assert "how often it fails: UNKNOWN" in out
    assert "goodput UNKNOWN: --save (or --state and --storage) missing" in out
    assert "goodput UNKNOWN: --restart missing" in out


@pytest.mark.parametrize(
    ("name", "gpus", "hours"),
    [
        ("rsc-1", 16_384, 1.80),
        ("rsc-2", 8_192, 10.02),
        ("8-gpu-node", 8, 6334.6),
        ("100k", 100_000, 0.50677),
    ],
)
def test_a_published_rate_makes_the_published_time_between_failures(capsys, name, gpus, hours):
    last = told(capsys, "--preset", name)["sizes"][-1]
    assert last["gpus"] == gpus
    assert last["mtbf_s"] / 3600 == pytest.approx(hours, rel=3e-3)


def test_flags_override_a_preset(capsys):
    asked = ("--preset", "llama3", "--state", "4GB/gpu", "--storage", "4TB/s", "--mtbf-job", "3h")
    only = told(capsys, *asked)["sizes"][0]
    assert (only["save_s"], only["mtbf_s"], only["restart_s"]) == (16.384, 10_800, 600)


def test_three_failures_in_an_hour_are_not_a_mean(capsys):
    assert main(["plan", "--gpus", "8", "--seen", "3/1h"]) == DONE
    out = capsys.readouterr().out
    assert (
        "3 failures in 1 h of the job are not an MTBF of 20.0 minutes: it is between 7.74 min and 1.22 h"
        in out
    )


def test_no_failure_is_a_bound(capsys):
    of = told(capsys, "--gpus", "8", "--seen", "0/100h", "--save", "5s", "--restart", "1min")
    assert of["rate"]["mtbf_s"] is None
    assert of["rate"]["mtbf_at_least_s"] / 3600 == pytest.approx(33.38, abs=0.01)
    assert of["rate"]["mtbf_at_most_s"] is None
    assert of["sizes"][0]["goodput_within"][1] == 1
    assert main(["plan", "--gpus", "8", "--seen", "0/100h"]) == DONE
    assert "the MTBF is over 33.4 h (95 %)" in capsys.readouterr().out


def test_a_plan_rests_on_what_a_run_measured(tmp_path, capsys):
    run = written(tmp_path / "run", many_causes())
    of = told(capsys, "--from", run)
    assert {one["cause"]: one["incidents"] for one in of["measured"]["causes"]} == {
        "node_loss": 4,
        "preemption": 3,
        "exception": 1,
    }
    only = of["sizes"][0]
    assert (only["gpus"], only["save_s"], only["restart_s"]) == (8, 2, 60)
    assert only["mtbf_s"] == pytest.approx(8 * 3600)
    low, high = only["goodput_within"]
    assert low < only["goodput"] < high < 1
    assert only["commit_s"] == pytest.approx(5)
    assert main(["plan", "--from", run, "--gpus", "8,64", "--restart", "5min"]) == DONE
    out = capsys.readouterr().out
    assert "a crash loop (one cause at one step, again and again) is one incident" in out
    assert "preemptions are no failures: the plan is made without them" in out
    assert "5 failures in 40 h of training are not an MTBF of 8.0 hours: it is between" in out


def test_two_runs_count_together(tmp_path, capsys):
    one = written(tmp_path / "one", failing([10 * 3600, 10 * 3600], [Cause.NODE_LOSS], [3]))
    two = written(tmp_path / "two", failing([20 * 3600], [], [3]))
    of = told(capsys, "--from", one, two)
    assert of["measured"]["runs"] == 2
    assert of["sizes"][0]["mtbf_s"] == pytest.approx(40 * 3600)
    assert main(["plan", "--from", one, "--restart", "1min", "--mtbf-job", "3h"]) == DONE
    assert "the job fails once in 3 h" in capsys.readouterr().out


def test_a_drill_is_called_one(tmp_path, capsys):
    run = write(tmp_path / "run", KILLED_ONCE).path
    assert main(["plan", "--from", str(run)]) == DONE
    out = capsys.readouterr().out
    assert "1 of 1 failures were injected: their rate is the drill's, not the machine's" in out
    assert "1 failure in 1.84 s of training are not an MTBF of 1.84 s: it is between" in out


def test_a_run_without_a_restart_does_not_say_how_long_one_takes(tmp_path, capsys):
    run = written(tmp_path / "run", failing([36_000], [], [3]))
    of = told(capsys, "--from", run)
    assert of["missing"] == ["--restart"]
    assert main(["plan", "--from", run]) == DONE
    assert "the end of a run is no failure: it only ends the time" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "--gpus missing"),
        (["--gpus", "8", "--mtbf", "3h"], "--mtbf 3h of what?"),
        (["--gpus", "8", "--mtbf-per-gpu", "-3h"], "--mtbf-per-gpu = -10800.0 is not above 0"),
        (["--gpus", "8", "--mtbf-per-gpu", "3"], "'3' has no unit"),
        (["--gpus", "8", "--mtbf-per-gpu", "3x"], "unknown unit 'x'"),
        (["--gpus", "8", "--mtbf-per-gpu", "3h", "--mtbf-job", "1h"], "say two things of one rate"),
        (["--gpus", "8,16", "--mtbf-job", "1h"], "hold for one size"),
        (["--gpus", "9..1"], "runs backwards: write 1..9"),
        (["--gpus", "many"], "is not a number of GPUs"),
        (["--gpus", "0"], "--gpus = 0 is below 1"),
        (["--gpus", "9" * 400], f"--gpus = {'9' * 400} is not finite"),
        (["--gpus", "8", "--save", "0s"], "--save = 0.0 is not above 0"),
        (["--gpus", "8", "--save=-1s"], "--save = -1.0 is not above 0"),
        (["--gpus", "8", "--restart=-1s"], "--restart = -1.0 is below 0"),
        (["--gpus", "8", "--state", "4QB"], "unknown unit 'QB'"),
        (["--gpus", "8", "--state", "much"], "is not a number with a unit"),
        (["--gpus", "8", "--storage", "2TB"], "unknown unit 'TB' in '2TB'"),
        (["--gpus", "8", "--price", "2.5"], "'2.5' has no unit"),
        (
            ["--gpus", "8", "--memory-tier", "disk"],
            "unknown --memory-tier 'disk'; known: node, peer",
        ),
        (["--gpus", "8", "--stragglers", "1,2"], "is not noise[,slow-share,slowdown]"),
        (["--gpus", "8", "--memory-share", "0.5"], "--memory-share without --memory-tier"),
        (["--gpus", "8", "--burst", "7TB/s"], "--burst without --storage"),
        (["--gpus", "8", "--target", "1.5"], "--target = 1.5 is above 1"),
        (["--gpus", "8", "--flops", "1e20"], "--flops and --per-gpu go together"),
        (["--gpus", "8", "--seen", "3"], "is not failures/time"),
        (["--gpus", "8", "--days", "0"], "--days = 0.0 is not above 0"),
        (["--preset", "x"], "unknown preset 'x'; known: llama3, 100k"),
        (["--from", "/nowhere/at/all"], "no run at /nowhere/at/all"),
        (
            ["--gpus", "100000", "--mtbf-per-gpu", "50h", "--save", "33s", "--restart", "1s"],
            "on 100,000 GPUs the job fails every 1.8 s, which is no longer than a save (33 s)",
        ),
    ],
)
def test_each_mistake_gets_one_line(capsys, arguments, line):
    assert main(["plan", *arguments]) == USAGE
    err = capsys.readouterr().err
    assert line in err
    assert err.startswith("harness: ")
    assert err.count("\n") == 1
