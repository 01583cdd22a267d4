import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cache import Following
from harness.cli import main
from harness.commands import DONE, NO, USAGE
from harness.goodput import split
from harness.journal import read
from harness.report import report
from harness.rundir import RunDir
from harness.simulation.presets import LLAMA_3_BLAMES
from harness.timeline import timeline

VECTORS = Path(__file__).with_name("vectors.json")
TRACE = Path(__file__).with_name("trace.json")
TEXTBOOK = ("--mtbf", "3.1h", "--save", "33s", "--restart", "10min")


def test_the_command_draws_the_textbook_s_figure(capsys):
    assert main(["simulate", "--preset", "llama3"]) == DONE
    out = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if " min " in line}
    assert rows["14"] == ["14", "min", "87.75%", "87.1%–88.5%", "87.79%", "88.44%", "best"]
    assert rows["16"][2:] == ["87.74%", "87.0%–88.4%", "87.72%", "88.41%", "*"]
    assert rows["128"][2] == "65.80%"
    assert "20 runs of 54 days at each interval: MTBF 3.1 h (of the job), save 33.0 s" in out
    assert "simulated best 14 min, goodput 87.8%; the set that cannot be told apart: 12 min" in out
    assert "exact optimum of the textbook job 13.9 min, goodput 87.79%; Young 14.3 min" in out
    assert "the curve is flat: 10.9 min to 17.8 min cost less than 0.2 points" in out
    assert "one run of this length is known to ±0.41 points (standard deviation)" in out


def test_on_the_doubling_grid_sixteen_minutes_win(capsys):
    grid = "2,4,8,16,32,64,128min"
    assert main(["simulate", "--preset", "llama3", "--tau", grid, "--json"]) == DONE
    told = json.loads(capsys.readouterr().out)
    assert told["best_interval_s"] == 960
    assert round(told["best_goodput"], 5) == 0.87738
    assert [point["interval_s"] for point in told["points"]] == [60 * 2**k for k in range(1, 8)]
    assert round(told["theory"]["exact_goodput"], 6) == 0.877859


def test_without_a_preset_the_intervals_lie_around_the_best(capsys):
    assert main(["simulate", *TEXTBOOK, "--seeds", "3", "--json"]) == DONE
    told = json.loads(capsys.readouterr().out)
    intervals = [point["interval_s"] for point in told["points"]]
    assert len(intervals) == 25
    assert intervals[12] == pytest.approx(836.373, abs=0.001)
    assert told["horizon_s"] == 30 * 86_400


def test_a_written_run_is_reported_like_any_other(tmp_path, capsys):
    run = tmp_path / "run"
    asked = ["--preset", "llama3", "--days", "2", "--seeds", "2", "--tau", "14min"]
    assert main(["simulate", *asked, "--run", str(run)]) == DONE
    assert f"harness report {run}" in capsys.readouterr().out
    told = report(RunDir.at(run))
    assert (told.tool, told.standing.value, told.world_size) == ("simulate", "finished", 16_384)
    assert told.run_id == "simulated-llama3"
    assert told.notes == ()
    reasons = {one.reason for one in told.comebacks}
    assert reasons <= {blame.reason for blame in LLAMA_3_BLAMES}
    assert len(reasons) > 2
    whole = split(timeline(read(RunDir.at(run))))
    assert sum(whole.classes_ns().values()) == whole.wall_ns
    assert main(["report", str(run)]) == DONE
    assert "goodput" in capsys.readouterr().out
    assert main(["simulate", *asked, "--run", str(run)]) == USAGE
    assert "is not empty: name another directory for --run" in capsys.readouterr().err


def test_the_same_run_makes_the_same_files(tmp_path):
    for name in ("one", "two"):
        asked = [*TEXTBOOK, "--days", "1", "--tau", "14min", "--stragglers", "64,0.02"]
        assert main(["simulate", *asked, "--run", str(tmp_path / name)]) == DONE
    files = sorted(path.name for path in (tmp_path / "one" / "events").iterdir())
    assert files == ["rank-0.jsonl", "simulate.jsonl"]
    for name in files:
        one, two = (tmp_path / run / "events" / name for run in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_a_run_of_very_many_ranks_is_kept_between_readers(tmp_path):
    # 54 days of 16,384 ranks are more nanoseconds than a 64-bit number holds
    asked = ["--preset", "llama3", "--seeds", "1", "--tau", "64min", "--run", str(tmp_path / "run")]
    assert main(["simulate", *asked]) == DONE
    with Following(RunDir.at(tmp_path / "run")) as following:
        assert following.poll() > 5000
        paid = dict(following.fold.rank_totals)
        assert sum(paid.values()) > 2**64
    with Following(RunDir.at(tmp_path / "run")) as again:
        assert again.fold.rank_totals == paid
        assert again.poll() == 0


def test_a_run_of_nodes_that_fail_has_eight_ranks_to_each(tmp_path):
    asked = [*TEXTBOOK, "--days", "1", "--tau", "14min", "--lemons", "16,0.1,6"]
    assert main(["simulate", *asked, "--run", str(tmp_path / "run")]) == DONE
    told = report(RunDir.at(tmp_path / "run"))
    assert told.world_size == 128
    assert {one.rank for one in told.comebacks} <= set(range(0, 128, 8))


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_figure_is_drawn_and_is_the_same_each_time(tmp_path, ending):
    pytest.importorskip("matplotlib", reason="the optional extra `figures` is not installed")
    drawn = []
    for name in ("one", "two"):
        path = tmp_path / f"{name}.{ending}"
        asked = ["--preset", "llama3", "--seeds", "3", "--figure", str(path)]
        assert main(["simulate", *asked]) == DONE
        drawn.append(path.read_bytes())
    assert drawn[0] == drawn[1]
    if ending == "svg":
        text = drawn[0].decode()
        for words in ("exact form", "first order", "Young", "cannot be told", "9 in 10 runs"):
            assert words in text


def test_without_matplotlib_the_way_out_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["simulate", "--preset", "llama3", "--figure", "x.svg"]) == USAGE
    assert capsys.readouterr().err == (
        "harness: --figure needs matplotlib: pip install 'resilience-harness[figures]'\n"
    )


def test_vectors_agree_and_others_do_not(tmp_path, capsys):
    table = json.loads(VECTORS.read_text())
    table["results"] = [row for row in table["results"] if row["tau_min"] == 128]
    path = tmp_path / "vectors.json"
    path.write_text(json.dumps(table))
    assert main(["simulate", "--check-vectors", str(path)]) == DONE
    assert capsys.readouterr().out == (
        "10 of 10 rows agree: counts equal, floats to 1e-12 (loop), 1e-9 (sweep)\n"
        "7 of 7 streams of random numbers agree to the last bit\n"
    )
    table["results"][3]["failures"] += 1
    table["mulberry32_first5"]["0"][4] += 1e-16
    path.write_text(json.dumps(table))
    assert main(["simulate", "--check-vectors", str(path)]) == NO
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("seed 4, interval 7680 s: loop: failures is ")
    assert out[1:] == [
        "seed 0: mulberry32 gives other numbers",
        "9 of 10 rows agree: counts equal, floats to 1e-12 (loop), 1e-9 (sweep)",
        "6 of 7 streams of random numbers agree to the last bit",
    ]


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_vectors_of_other_seeds_and_figures_made_in_node_agree(tmp_path, capsys):
    script = Path(__file__).parents[3] / "benchmarks" / "textbook_loop.js"
    intervals, seeds = [333.3, 1500], [0, 7, 4_294_967_295]
    job = {"mtbf": 5000, "save": 12.5, "restart": 77, "horizon": 400_000, "repeats": 1}
    asked = json.dumps({**job, "intervals": intervals, "seeds": seeds})
    done = subprocess.run(
        ["node", str(script)], input=asked, capture_output=True, text=True, check=True
    )
    counts = iter(json.loads(done.stdout)["counts"])
    rows = []
    for interval in intervals:
        for seed in seeds:
            segments, failures = next(counts)
            rows.append(
                {"tau_s": interval, "seed": seed, "segments": segments, "failures": failures}
            )
    params = {"mtbf": 5000, "delta": 12.5, "restart": 77, "horizon": 400_000}
    path = tmp_path / "vectors.json"
    path.write_text(json.dumps({"params": params, "results": rows}))
    assert main(["simulate", "--check-vectors", str(path)]) == DONE
    assert capsys.readouterr().out.startswith("6 of 6 rows agree")


@pytest.mark.parametrize(
    ("flags", "least", "most"),
    [
        (("--law", "weibull:0.62"), 0.86, 0.91),
        (("--law", "lognormal:1.5"), 0.86, 0.91),
        (("--trace", str(TRACE)), 0.86, 0.92),
        (("--lemons", "2048,0.01,60,2"), 0.89, 0.93),
        (("--racks", "2048,8,25_000h,80_000h"), 0.90, 0.98),
        (("--failures-in-restarts",), 0.86, 0.885),
        (("--detection", "10min"), 0.80, 0.85),
        (("--restart-spread", "0.5"), 0.86, 0.89),
        (("--restart", "init=2min,restore=8min"), 0.865, 0.885),
        (("--commit", "5min"), 0.84, 0.865),
        (("--memory-tier", "5min,3s,2min,0.8"), 0.89, 0.94),
        (("--maintenance", "4d,10h"), 0.74, 0.80),
        (("--stragglers", "16384,0.02"), 0.78, 0.84),
        (("--stragglers", "64,0,0.001,1.5"), 0.80, 0.88),
        (("--corruption", "4d,6h"), 0.68, 0.84),
        (("--spares", "1,4h"), 0.60, 0.86),
    ],
)
def test_every_option_moves_the_goodput_the_way_that_it_should(capsys, flags, least, most):
    asked = ["--preset", "llama3", "--tau", "14min", "--seeds", "2", "--json", *flags]
    assert main(["simulate", *asked]) == DONE
    goodput = json.loads(capsys.readouterr().out)["best_goodput"]
    assert least < goodput < most


def test_the_cost_of_stragglers_is_told_by_the_number_of_devices(capsys):
    asked = ["--preset", "llama3", "--days", "1", "--tau", "14min", "--seeds", "1"]
    assert main(["simulate", *asked, "--stragglers", "4096,0.02,0.0001,1.5"]) == DONE
    out = capsys.readouterr().out.splitlines()
    assert (
        "a step by number of devices, for noise alone:"
        " 1: 1.000, 16: 1.036, 256: 1.058, 4,096: 1.075 × a device's own mean"
    ) in out
    assert "33.6% of the attempts have a slow device in them; with one, a step takes 1.500 ×" in out


def test_a_trace_alone_is_taken_as_it_happened(capsys):
    asked = ["--trace", str(TRACE), "--save", "33s", "--restart", "10min", "--days", "5"]
    assert main(["simulate", *asked, "--tau", "1h", "--seeds", "1"]) == DONE
    out = capsys.readouterr().out
    assert "failures as in the trace" in out
    assert "one run tells no two intervals apart" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--mtbf", "3.1h", "--save", "33s"), "--restart missing: nobody can guess, give"),
        (("--mtbf", "3.1h"), "--save and --restart missing: nobody can guess, give"),
        (("--save", "33s", "--restart", "1min"), "the mean time between failures is missing: give"),
        (("--preset", "llama4"), "unknown preset 'llama4'; known: llama3, llama3-100k"),
        (("--preset", "llama3", "--tau", "0min"), "--tau = 0.0 is not above 0"),
        (("--preset", "llama3", "--tau", "4,8"), "'8' has no unit"),
        (("--preset", "llama3", "--mtbf", "20s"), "--mtbf 20s is no longer than a save (33 s)"),
        (("--preset", "llama3", "--mtbf", "-3h"), "--mtbf = -10800.0 is not above 0"),
        (("--preset", "llama3", "--mtbf", "3.1"), "'3.1' has no unit"),
        (("--preset", "llama3", "--save", "33 sec"), "unknown unit 'sec' in '33 sec'; known"),
        (("--preset", "llama3", "--save", "-1s"), "--save = -1.0 is below 0"),
        (("--preset", "llama3", "--restart", "-1s"), "--restart = -1.0 is below 0"),
        (("--preset", "llama3", "--restart", "boot=1s"), "unknown part 'boot' of a restart; known"),
        (("--preset", "llama3", "--days", "-1"), "--days = -1.0 is not above 0"),
        (("--preset", "llama3", "--days", "1e9"), "--days 1e+09 has more than 10,000,000 failures"),
        (("--preset", "llama3", "--run", "s3://bucket/run"), "a run directory is a folder of this"),
        (("--preset", "llama3", "--seeds", "0"), "--seeds = 0 is below 1"),
        (("--preset", "llama3", "--seeds", "1000001"), "--seeds = 1000001 is above 1000000"),
        (("--preset", "llama3", "--first-seed", "4294967295"), "seed = 4294967314 is above"),
        (("--preset", "llama3", "--law", "pareto:2"), "unknown law 'pareto:2'; known"),
        (("--preset", "llama3", "--law", "weibull:x"), "'x' is not a number"),
        (("--preset", "llama3", "--law", "weibull:1", "--lemons", "1,0,1"), "--lemons and --law"),
        (("--preset", "llama3", "--memory-tier", "5min"), "--memory-tier '5min' is not interval,"),
        (("--preset", "llama3", "--stragglers", "8,0,0.1"), "--stragglers '8,0,0.1' is not"),
        (("--preset", "llama3", "--spares", "few,2d"), "'few' is not a whole number"),
        (("--preset", "llama3", "--detection", "-1s"), "mean_s = -1.0 is below 0"),
        (("--preset", "llama3", "--commit", "-1s"), "commit_s = -1.0 is below 0"),
        (("--preset", "llama3", "--figure", "x.gif"), "--figure x.gif has no known ending; known"),
        (("--mtbf", "1h", "--save", "0s", "--restart", "1s"), "--tau missing: a save that costs"),
        (("--check-vectors", "/nowhere.json"), "[Errno 2] No such file"),
    ],
)
def test_bad_input_gets_one_clear_line(capsys, flags, message):
    assert main(["simulate", *flags]) == USAGE
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"harness: {message}")
    assert told.err.count("\n") == 1


def test_a_file_that_is_nested_without_end_gets_one_clear_line(tmp_path, capsys):
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    for flags in (["--preset", "llama3", "--trace", str(path)], ["--check-vectors", str(path)]):
        assert main(["simulate", *flags]) == USAGE
        told = capsys.readouterr().err
        assert told.startswith(f"harness: {path} ")
        assert told.count("\n") == 1


def test_an_empty_trace_gets_one_clear_line(tmp_path, capsys):
    path = tmp_path / "trace.csv"
    path.write_text("at_s\n")
    assert main(["simulate", "--preset", "llama3", "--trace", str(path)]) == USAGE
    assert capsys.readouterr().err == f"harness: {path} is empty: there is no failure in it\n"
