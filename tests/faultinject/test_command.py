import subprocess
import sys
from pathlib import Path

import pytest

from faultinject import plan, tape, tapefile
from faultinject.command import faults
from faultinject.show import clock, rendered

PLAN = """
seed = 3
arrival = { instants = [3600.25, 30, 90061] }
[[faults]]
kind = "kill"
"""
HUNDRED = """
max_faults = 100
arrival = { exponential = { mtbf_s = 60 } }
[[faults]]
kind = "kill"
"""


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


def test_show_prints_what_will_happen(plan_file, capsys):
    assert faults(["show", str(plan_file), "--ranks", "4"]) == 0

    digest = tape.digest(plan.read(plan_file))
    line = "─" * 68
    assert capsys.readouterr().out.splitlines() == [
        f"3 faults for 4 ranks, at given instants, seed 3; plan {digest}",
        "Time 0 is the run's first committed save. A fault whose target is down waits for it.",
        "",
        f"0 ×─×{line}× 1 day, 1:01:01.0",
        "",
        "id                at        gap  kind  target",
        "f1         0:00:30.0     30.0 s  kill  rank 2",
        "f2         1:00:00.2   3570.2 s  kill  rank 3",
        "f3  1 day, 1:01:01.0  86460.8 s  kill  rank 0",
        "",
        "mean gap  30020.3 s, least 30.0 s, most 86460.8 s",
        "kinds     kill 3",
        "targets   rank 0: 1, rank 2: 1, rank 3: 1",
    ]


def test_a_long_tape_is_cut_in_the_list_and_whole_in_the_sums(tmp_path, capsys):
    path = tmp_path / "plan.toml"
    path.write_text(HUNDRED)

    assert faults(["show", str(path)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert "… and 60 more" in lines
    assert "kinds     kill 100" in lines
    assert len(lines) < 60


def test_a_plan_without_faults_can_be_shown():
    empty = tape.Plan(tape.Exponential(1), (tape.Choice("kill"),), 0)

    assert rendered(empty, tape.compile(empty, 2)).startswith("0 faults for 2 ranks")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00:00.0"), (59.96, "0:01:00.0"), (3725.26, "1:02:05.3")]
)
def test_times_are_read_by_people(seconds, text):
    assert clock(seconds) == text


def test_compile_writes_the_tape_of_the_plan(plan_file, tmp_path, capsys):
    out = tmp_path / "tape.jsonl"

    assert faults(["compile", str(plan_file), "--ranks", "4", "--out", str(out)]) == 0

    assert tapefile.read(out) == tape.compile(plan.read(plan_file), 4)
    assert capsys.readouterr().out == f"faults: 3 faults for 4 ranks written to {out}\n"


def test_check_tells_a_tape_from_what_is_none(plan_file, tmp_path, capsys):
    out = tmp_path / "tape.jsonl"
    faults(["compile", str(plan_file), "--ranks", "4", "--out", str(out)])

    assert faults(["check", str(out)]) == 0
    assert faults(["check", str(plan_file)]) == 2
    assert "line 1: not JSON" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["show"], ["compile"], [], ["break"]])
def test_a_call_that_is_wrong_ends_with_2(arguments, capsys):
    assert faults(arguments) == 2
    assert "usage: harness faults" in capsys.readouterr().err


@pytest.mark.parametrize("ranks", ["0", "-1", "two", "9" * 9])
def test_a_number_of_ranks_that_is_none_ends_with_2(plan_file, ranks, capsys):
    assert faults(["show", str(plan_file), f"--ranks={ranks}"]) == 2
    assert f"{ranks!r} is not a number of ranks" in capsys.readouterr().err


def test_every_mistake_of_a_plan_is_a_line_on_stderr(tmp_path, capsys):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace("kill", "kil").replace("3600.25", "-1"))

    assert faults(["show", str(path)]) == 2

    assert capsys.readouterr().err.splitlines() == [
        f"harness faults: {path}: arrival.instants[1] = -1 must be greater than or equal to 0",
        f"harness faults: {path}: faults[1]: unknown fault kind 'kil'; known: kill",
    ]


def test_a_rank_that_the_job_has_not_is_a_mistake_of_the_plan(plan_file, capsys):
    plan_file.write_text(PLAN + 'target = "rank 2"')

    assert faults(["show", str(plan_file), "--ranks", "2"]) == 2

    assert capsys.readouterr().err.startswith(f"harness faults: {plan_file}: target 'rank 2'")


def test_a_plan_that_is_not_there_ends_with_2(capsys):
    assert faults(["show", "/nowhere/plan.toml"]) == 2
    assert (
        capsys.readouterr().err == "harness faults: /nowhere/plan.toml: No such file or directory\n"
    )


def test_help_says_units_and_defaults(capsys):
    assert faults(["inject", "--help"]) == 0

    text = " ".join(capsys.readouterr().out.split())
    assert "seconds to wait for the run to begin (default 600)" in text


def test_the_module_is_the_same_command(plan_file):
    command = [sys.executable, "-m", "faultinject", "show", str(plan_file)]

    ended = subprocess.run(command, capture_output=True, text=True, check=True)

    assert ended.stdout.startswith("3 faults for 2 ranks, at given instants")


def test_an_injector_imports_neither_torch_nor_what_reads_plans():
    code = "import sys, faultinject.command; print(*sorted({m.split('.')[0] for m in sys.modules}))"

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    heavy = {"torch", "numpy", "pydantic", "rich", "cyclopts", "fsspec", "safetensors", "launch"}
    assert not heavy & set(ended.stdout.split())


def test_rules_for_storage_are_shown_and_are_refused_where_they_reach_nothing(tmp_path, capsys):
    plan = tmp_path / "plan.toml"
    plan.write_text(
        '[[storage]]\nkind = "eio"\nname = "*/commit.json"\nprobability = 0.1\nmost = 3\n'
    )
    assert faults(["show", str(plan)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("0 faults and 1 rules for storage for 2 ranks, seed 0; plan ")
    assert (
        "s1  eio: create, delete, list, look, read, write */commit.json,"
        " each call with probability 0.1, 3 times at most" in shown
    )

    made = tmp_path / "tape"
    compiled = ["compile", str(plan), "--ranks", "2", "--out", str(made), "--checkpoints"]
    assert faults([*compiled, "s3://bucket/run"]) == 2
    assert "give --checkpoints chaos::URL" in capsys.readouterr().err
    assert not made.exists()
    assert faults([*compiled, "chaos::s3://bucket/run"]) == 0
    assert faults(["check", str(made), "--checkpoints", ""]) == 2
    assert faults(["check", str(made)]) == 0


def test_a_tape_for_ranks_that_are_not_there_is_refused(tmp_path, capsys):
    file = tmp_path / "tape.jsonl"
    tapefile.write(file, tape.compile(plan.decode(PLAN.encode()), 4))
    assert faults(["check", str(file), "--ranks", "4"]) == 0
    capsys.readouterr()
    assert faults(["check", str(file), "--ranks", "2"]) == 2
    assert capsys.readouterr().err == (
        f"harness faults: {file}: rank 2 does not exist at 2 ranks, and the tape is for 4:"
        " compile it anew with --ranks 2\n"
    )


@pytest.mark.parametrize("wait", ["nan", "inf", "-1", "1e300", "soon"])
def test_a_wait_that_is_no_time_is_refused(tmp_path, capsys, wait):
    assert faults(["inject", "--run", str(tmp_path / "run"), "--wait-s", wait]) == 2
    assert f"'{wait}' is not a time from 0 to 1e+09 s" in capsys.readouterr().err


@pytest.mark.parametrize("ranks", ["0", "-1", "1e5", "1000001", "9" * 5000, "²"])
def test_a_number_of_ranks_that_is_none_is_refused(plan_file, capsys, ranks):
    assert faults(["show", str(plan_file), f"--ranks={ranks}"]) == 2
    assert f"'{ranks[:40]}' is not a number of ranks, from 1 to 1000000" in capsys.readouterr().err


def test_a_tape_that_cannot_be_read_is_said_before_a_run_is_waited_for(tmp_path, capsys):
    run, nowhere = str(tmp_path / "run"), str(tmp_path / "nowhere")
    assert faults(["inject", "--run", run, "--tape", nowhere]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"harness faults: {nowhere}: No such file or directory\n")


@pytest.mark.parametrize("place", ["", "nowhere/x", "x" * 300])
def test_a_tape_that_cannot_be_written_names_what_was_asked_for(tmp_path, plan_file, capsys, place):
    out = tmp_path / place
    assert faults(["compile", str(plan_file), "--ranks", "2", "--out", str(out)]) == 2
    assert capsys.readouterr().err.startswith(f"harness faults: {out}: ")
    assert list(tmp_path.iterdir()) == [plan_file]
