"""What `harness run` takes, and what it refuses before anything starts."""

import sys
from dataclasses import fields
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from harness.settings import Settings
from launch.flags import SETTINGS_HELP, UsageError
from launch.options import parse
from launch.rank import Kind, Program
from launch.restarts import NS, Limits
from launch.watchdog import Limits as HangLimits


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A script in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    return "train.py"


def test_flags_before_the_script_are_ours_and_those_after_it_are_its_own(script: str):
    asked = parse(["--nproc-per-node", "2", "--seed", "3", script, "--seed", "4", "--", "x"])
    assert asked.program == Program(Kind.SCRIPT, script, ("--seed", "4", "--", "x"))
    assert asked.ranks == "2"
    assert asked.settings == {"seed": "3"}


def test_a_module_is_named_after_m():
    assert parse(["-m", "json.tool", "-x"]).program == Program(Kind.MODULE, "json.tool", ("-x",))


def test_a_module_that_is_nowhere_is_refused_before_anything_starts():
    with pytest.raises(UsageError, match="there is no module named 'numpi', neither in "):
        parse(["-m", "numpi.train"])


def test_a_package_that_only_a_finder_of_its_own_knows_is_there(monkeypatch):
    class Editable(MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
            return ModuleSpec(name, None) if name == "edited" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable()])
    assert parse(["-m", "edited.train"]).program == Program(Kind.MODULE, "edited.train", ())


def test_torchrun_s_own_spelling_is_understood(script: str):
    asked = parse(["--standalone", "--nproc_per_node=gpu", "--max_restarts=3", script])
    assert (asked.ranks, asked.limits.restarts) == ("gpu", 3)


def test_every_setting_has_a_flag_and_a_line_of_help(script: str):
    assert set(SETTINGS_HELP) == {field.name for field in fields(Settings)}
    flags = ["--save-every-steps", "7", "--no-exact", "--resume", "fresh"]
    assert parse([*flags, script]).settings == {
        "save_every_steps": "7",
        "exact": False,
        "resume": "fresh",
    }


def test_the_defaults_restart_a_job_ten_times_an_hour(script: str):
    asked = parse([script])
    assert asked.limits == Limits(10, 3600 * NS)
    assert (asked.grace_s, asked.cold, asked.metrics, asked.quiet) == (60.0, False, True, False)


def test_each_limit_of_a_hang_has_a_flag_and_without_the_first_nothing_is_watched(script: str):
    assert parse([script]).hangs == HangLimits()
    flags = ["--hang-after", "9", "--startup-limit", "1.5", "--restore-limit", "2"]
    flags += ["--first-step-limit", "3", "--evaluation-limit", "4", "--save-limit", "5"]
    assert parse([*flags, script]).hangs == HangLimits(
        step_ns=9 * NS,
        startup_ns=3 * NS // 2,
        restore_ns=2 * NS,
        first_step_ns=3 * NS,
        evaluation_ns=4 * NS,
        save_ns=5 * NS,
    )
    assert parse(["--hang-after", "0", script]).hangs is None


def test_torchrun_s_environment_still_sets_the_restarts(
    script: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PET_MAX_RESTARTS", "7")
    assert parse([script]).limits.restarts == 7


def test_flags_without_a_meaning_here_are_said_to_have_none(script: str):
    assert parse(["--master-port", "29500", "--tee", "3", script]).notes == (
        "--tee has no effect: what ranks print goes to logs/ of the run directory",
        "--master-port has no effect: each attempt takes a free port",
    )
    assert parse(["--cold", "--preload", "numpy", script]).notes == (
        "--preload has no effect: with --cold each rank imports everything by itself",
    )
    assert parse([script]).notes == ()


def test_modules_to_preload_may_stand_apart(script: str):
    assert parse(["--preload", "a.b, c,,", script]).preload == ("a.b", "c")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--nnodes", "2"], "--nnodes 2 is not supported yet: a run has one node"),
        (["--nnodes", "1:4"], "--nnodes 1:4 is not supported yet"),
        (["--no-python"], "--no-python is not supported: ranks are forks of a Python process"),
        (["--virtual-local-rank"], "--virtual-local-rank is not supported"),
        (["--grace", "-1"], "--grace -1 is not a time: it must be from 0 to 1e+09 s"),
        (["--restart-window", "nan"], "--restart-window nan is not a time"),
        (["--restart-window", "inf"], "--restart-window inf is not a time"),
        (["--max-restarts", "-1"], "--max-restarts -1 is below 0"),
        (["--max-preemptions", "-1"], "--max-preemptions -1 is below 0"),
        (["--max-restarts", "x"], "argument --max-restarts/--max_restarts: invalid int value"),
        (["--metrics-port", "70000"], "--metrics-port 70000 is no TCP port"),
        (["--faults", "nowhere.toml"], "--faults nowhere.toml: there is no such file"),
        (["--tape", "."], "--tape .: there is no such file"),
        (["--grace", "1e300"], "--grace 1e+300 is not a time: it must be from 0 to 1e+09 s"),
        (["--restart-window", "1e300"], "--restart-window 1e+300 is not a time"),
        (["--metrics-port", "-1"], "--metrics-port -1 is no TCP port: it is 0 to 65535"),
        (["--metrics-host", ""], "--metrics-host '' is no address: name one"),
        (["--run", "s3://key:word@bucket/run"], "--run: a run directory is a folder of this"),
        (["--run", "file:///run"], "--run: a run directory is a folder of this machine and no URL"),
        (["--keep", "0"], "flag: keep = 0 is below 1"),
        (["--seed", "9" * 30], f"flag: seed = {'9' * 30} is above {2**63 - 1}"),
        (
            ["--checkpoints", "file://"],
            "flag: checkpoints = 'file://' names no place: use file:///",
        ),
        (
            ["--checkpoints", "chaos::file://x"],
            "flag: checkpoints = 'chaos::file://x' names no place",
        ),
        (["--checkpoints", "://x"], "flag: checkpoints = '://x' names no place"),
        (["--target-losses", "2;1"], "flag: target_losses: '2;1' is not a list of losses"),
        (["--hang-after", "-5s"], "argument --hang-after: invalid float value: '-5s'"),
        (["--storage-every", "-5min"], "flag: storage_every: '-5min' is no interval"),
        (["--bogus"], "unrecognized arguments: --bogus"),
    ],
)
def test_nonsense_is_refused_in_one_line(script: str, flags: list[str], message: str):
    with pytest.raises(UsageError) as refused:
        parse([*flags, script])
    assert str(refused.value).startswith(message)


def test_three_mistakes_make_three_lines(script: str):
    with pytest.raises(UsageError) as refused:
        parse(["--nnodes", "2", "--grace", "-1", "--metrics-port", "-5", script])
    assert len(str(refused.value).splitlines()) == 3


def test_a_script_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"there is no script 'nosuch\.py' in /"):
        parse(["nosuch.py"])


def test_a_plan_and_a_tape_exclude_each_other(script: str):
    Path("plan.toml").touch()
    with pytest.raises(UsageError, match="--faults and --tape exclude each other"):
        parse(["--faults", "plan.toml", "--tape", "plan.toml", script])


def test_every_mistake_of_flags_settings_and_environment_is_in_one_message(
    script: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HARNESS_SEED", "zz")
    with pytest.raises(UsageError) as refused:
        parse(["--keep", "0", "--grace", "nan", "--nnodes", "3", "--resume", "x", script])
    assert str(refused.value).splitlines() == [
        "--nnodes 3 is not supported yet: a run has one node, so use --nnodes 1",
        "--grace nan is not a time: it must be from 0 to 1e+09 s",
        "flag: keep = 0 is below 1",
        "flag: resume = 'x' is neither 'auto', 'fresh' nor a step",
        "environment: seed = 'zz' is not a whole number",
    ]


def test_a_folder_is_a_script_only_with_a_main_in_it(script: str):
    Path("folder").mkdir()
    with pytest.raises(
        UsageError, match=r"folder is a folder without a __main__\.py: name a script"
    ):
        parse(["folder"])
    Path("folder/__main__.py").touch()
    assert parse(["folder"]).program == Program(Kind.SCRIPT, "folder")
