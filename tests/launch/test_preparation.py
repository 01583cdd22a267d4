"""Where a run is kept, and that a directory belongs to one run for ever."""

import re
from pathlib import Path

import pytest

from harness import settings
from harness.rundir import RunDir
from harness.settings import Setting
from launch.flags import UsageError
from launch.options import parse
from launch.preparation import Prepared, arm, held, prepare, undone_if_refused

PLAN = """
schema = 1
seed = 7

max_faults = 3

[arrival]
exponential = { mtbf_s = 5 }

[[faults]]
kind = "kill"
"""


@pytest.fixture(autouse=True)
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two scripts in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("other.py").touch()


def _prepared(*argv: str, environ: dict[str, str] | None = None) -> Prepared:
    return prepare(parse([*argv]), environ or {})


def _launched(*argv: str, environ: dict[str, str] | None = None) -> Prepared:
    """As `harness run` would have left it behind."""
    prepared = _prepared(*argv, environ=environ)
    prepared.run_dir.create()
    settings.write(prepared.run_dir.settings, prepared.record)
    return prepared


def test_a_run_without_a_name_gets_one_of_its_script_and_the_time():
    path = _prepared("train.py").run_dir.path
    assert path.parent == Path("runs").absolute()
    assert re.fullmatch(r"train-\d{8}-\d{6}", path.name)
    path.mkdir(parents=True)
    again = _prepared("train.py").run_dir.path
    assert again != path
    Path("pack").mkdir()
    assert re.fullmatch(r"m-\d{8}-\d{6}", _prepared("-m", "pack.m").run_dir.path.name)


def test_a_place_for_copies_that_is_not_there_is_refused_before_a_rank_starts(tmp_path):
    with pytest.raises(UsageError, match=r"memory_dir = '/typo' is no folder that can be written"):
        _prepared("--memory-dir", "/typo", "train.py")
    _prepared("--memory-dir", "/typo", "--memory-every", "off", "train.py")
    _prepared("--memory-dir", str(tmp_path), "train.py")


def test_nothing_is_touched_by_preparing():
    _prepared("--run", "r", "train.py")
    assert sorted(path.name for path in Path().iterdir()) == ["other.py", "train.py"]


def test_flags_stand_above_the_environment_and_that_above_what_was():
    environ = {"HARNESS_KEEP": "5", "HARNESS_SEED": "6"}
    first = _launched("--run", "r", "--seed", "3", "train.py", environ=environ)
    assert first.record.settings["seed"] == Setting(3, "flag")
    assert first.record.settings["keep"] == Setting(5, "environment")
    again = _prepared("--run", "r", "--threads", "2", "train.py")
    assert again.record.settings["seed"] == Setting(3, "flag")
    assert again.record.settings["keep"] == Setting(5, "environment")
    assert again.record.settings["threads"] == Setting(2, "flag")
    assert again.record.settings["resume"] == Setting("auto", "default")


def test_a_directory_is_continued_under_its_own_id():
    first = _launched("--run", "r", "train.py", "--lr", "3")
    again = _prepared("--run", "r", "train.py", "--lr", "4")
    assert (first.continued, again.continued) == (False, True)
    assert again.record.run_id == first.record.run_id
    assert again.record.command == ("train.py", "--lr", "4")


def test_another_script_is_another_run():
    _launched("--run", "r", "train.py")
    with pytest.raises(UsageError, match=r"/r is the run of train\.py, and this is other\.py"):
        _prepared("--run", "r", "other.py")


def test_another_seed_is_another_run():
    _launched("--run", "r", "--seed", "3", "train.py")
    with pytest.raises(UsageError, match=r"seed was 3 \(flag\) and cannot become 4 \(flag\)"):
        _prepared("--run", "r", "--seed", "4", "train.py")


def test_a_directory_of_other_things_is_left_alone():
    Path("thesis").mkdir()
    Path("thesis/chapter-1").touch()
    with pytest.raises(UsageError, match="/thesis is not empty and holds no run"):
        _prepared("--run", "thesis", "train.py")


def test_a_setting_that_is_none_is_refused_with_its_range():
    with pytest.raises(UsageError, match="flag: keep = 0 is below 1"):
        _prepared("--keep", "0", "train.py")


def test_a_file_is_no_run_directory():
    with pytest.raises(UsageError, match=r"--run /.*/train\.py cannot be used: Not a directory"):
        _prepared("--run", "train.py", "train.py")


def test_a_place_where_nothing_can_be_made_is_no_run_directory():
    prepared = _prepared("--run", "/proc/r", "train.py")
    with pytest.raises(UsageError, match="--run /proc/r cannot be used"), held(prepared.run_dir):
        pass


def test_a_run_has_one_launcher_at_a_time(tmp_path: Path):
    run_dir = RunDir.at(tmp_path / "r")
    refused = pytest.raises(UsageError, match="another launcher is at work")
    with held(run_dir), refused, held(run_dir):
        pass
    with held(run_dir):
        pass


def test_a_plan_becomes_the_run_s_tape_once_and_for_all():
    Path("plan.toml").write_text(PLAN)
    flags = ("--run", "r", "--faults", "plan.toml", "train.py")
    prepared = _launched(*flags)
    assert prepared.record.armed
    arm(prepared, parse(flags), 2)
    tape = prepared.run_dir.tape.read_bytes()
    arm(prepared, parse(flags), 2)
    assert prepared.run_dir.tape.read_bytes() == tape
    assert _prepared("--run", "r", "train.py").record.armed
    Path("plan.toml").write_text(PLAN.replace("seed = 7", "seed = 8"))
    with pytest.raises(UsageError, match="has another tape of faults already"):
        arm(prepared, parse(flags), 2)
    assert prepared.run_dir.tape.read_bytes() == tape
    assert [path.name for path in Path("r").glob("*tape*")] == ["tape.jsonl"]


def test_a_plan_that_cannot_be_compiled_is_refused_with_its_compiler_s_words():
    Path("plan.toml").write_text(PLAN.replace('"kill"', '"kil"'))
    flags = ("--run", "r", "--faults", "plan.toml", "train.py")
    with pytest.raises(UsageError, match=r"^plan\.toml: .*kil"):
        arm(_launched(*flags), parse(flags), 2)


def test_a_launch_that_was_refused_fixed_nothing():
    Path("plan.toml").write_text(PLAN)
    flags = ("--run", "r", "--checkpoints", "s3://x", "--faults", "plan.toml", "train.py")
    prepared = _prepared(*flags)
    with held(prepared.run_dir):
        arm(prepared, parse(flags), 2)
        settings.write(prepared.run_dir.settings, prepared.record)
        with pytest.raises(UsageError), undone_if_refused(prepared):
            raise UsageError("storage")
    again = _prepared("--run", "r", "train.py")
    assert not again.continued
    assert not again.record.armed


def test_a_refused_launch_leaves_a_run_that_was_launched_before_as_it_is():
    _launched("--run", "r", "train.py")
    prepared = _prepared("--run", "r", "train.py")
    with pytest.raises(UsageError), undone_if_refused(prepared):
        raise UsageError("storage")
    assert _prepared("--run", "r", "train.py").continued


def test_a_tape_that_is_none_is_refused_in_words():
    Path("tape.jsonl").write_text("garbage\n")
    flags = ("--run", "r", "--tape", "tape.jsonl", "train.py")
    prepared = _launched(*flags)
    with pytest.raises(UsageError, match=r"^tape\.jsonl: line 1: not JSON"):
        arm(prepared, parse(flags), 2)
    assert not prepared.run_dir.tape.exists()
