import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy
import pytest

from harness import settings
from harness.intervals.asked import FORMS
from harness.quantities import UNITS_S
from harness.settings import DEFAULTS, Record, Setting, Settings

UNITS = f"units: {', '.join(UNITS_S)}"


def test_the_first_layer_that_names_a_setting_wins():
    resolved = settings.resolve(
        [
            ("flag", {"keep": 5}),
            ("environment", {"keep": "4", "seed": "7"}),
            ("run.toml", {"seed": 8, "resume": "fresh"}),
            ("join", {"resume": "auto", "threads": 2}),
        ]
    )
    assert resolved["keep"] == Setting(5, "flag")
    assert resolved["seed"] == Setting(7, "environment")
    assert resolved["resume"] == Setting("fresh", "run.toml")
    assert resolved["threads"] == Setting(2, "join")
    assert resolved["storage_every"] == Setting("auto", "default")


def test_steps_between_saves_are_an_interval_of_the_storage():
    layers = [("flag", {"save_every_steps": "7"}), ("join", {"storage_every": "30s"})]
    assert settings.resolve(layers)["storage_every"] == Setting("7 steps", "flag")
    none = settings.resolve([("join", {"save_every_steps": 0})])
    assert none["storage_every"] == Setting("off", "join")
    environ = {"HARNESS_SAVE_EVERY_STEPS": "4"}
    assert settings.from_environment(environ) == {"save_every_steps": "4"}


def test_one_interval_is_not_given_twice_and_not_without_a_unit():
    with pytest.raises(ValueError, match="two names") as caught:
        settings.resolve(
            [
                ("flag", {"save_every_steps": "7", "storage_every": "30s"}),
                ("environment", {"memory_every": "30"}),
                ("join", {"save_every_steps": -1}),
            ]
        )
    assert str(caught.value).splitlines() == [
        "flag: save_every_steps and storage_every are two names of one setting: give one of them",
        f"environment: memory_every: '30' has no unit: write for example 30s; {UNITS}; or write {FORMS}",
        "join: save_every_steps = -1 is below 0",
    ]


def test_a_run_that_was_started_with_steps_between_saves_goes_on_with_them(tmp_path: Path):
    path = tmp_path / "run.toml"
    settings.write(path, Record("a", ["x"], {"save_every_steps": Setting(7, "flag")}, {}))
    read = settings.read(path)
    assert read is not None
    assert read.settings == {"storage_every": Setting("7 steps", "flag")}
    settings.write(path, Record("a", ["x"], {"save_every_steps": Setting(50, "default")}, {}))
    assert settings.read(path) == Record("a", ("x",), {}, {})


def test_all_mistakes_of_all_layers_make_one_message():
    with pytest.raises(ValueError, match="unknown setting") as caught:
        settings.resolve(
            [
                ("flag", {"kep": 5, "keep": 0}),
                ("environment", {"seed": "one", "exact": "perhaps", "resume": "yesterday"}),
            ]
        )
    assert str(caught.value).splitlines() == [
        f"flag: unknown setting 'kep'; known: {', '.join(DEFAULTS)}",
        "flag: keep = 0 is below 1",
        "environment: seed = 'one' is not a whole number",
        "environment: exact = 'perhaps' is neither true nor false",
        "environment: resume = 'yesterday' is neither 'auto', 'fresh' nor a step",
    ]


@pytest.mark.parametrize(
    "value", [2.5, 2.0, True, None, "2.5", Fraction(5, 2), numpy.float32(2), b"2", [2]]
)
def test_a_number_is_never_made_whole_by_cutting_it(value):
    with pytest.raises(
        ValueError, match=re.escape(f"join: keep = {value!r} is not a whole number")
    ):
        settings.resolve([("join", {"keep": value})])


def test_a_step_that_is_no_decimal_number_is_none():
    with pytest.raises(ValueError, match="resume = '²' is neither 'auto', 'fresh' nor a step"):
        settings.resolve([("flag", {"resume": "²"})])


def test_an_environment_names_settings_in_capitals_and_empty_ones_are_not_set():
    environ = {"HARNESS_KEEP": "4", "HARNESS_SEED": "", "HARNESS_RUN_DIR": "x", "PATH": "y"}
    assert settings.from_environment(environ) == {"keep": "4"}


def test_a_run_cannot_go_on_with_another_seed():
    before = settings.resolve([("flag", {"seed": 1})])
    assert settings.changed(before, settings.resolve([("flag", {"seed": 1, "keep": 9})])) == []
    assert settings.changed(before, settings.resolve([("environment", {"seed": "2"})])) == [
        "seed was 1 (flag) and cannot become 2 (environment): start another run directory for that"
    ]


def test_a_script_may_choose_what_its_launcher_left_at_the_default():
    launched = settings.renew([("flag", {"keep": 5})], {})
    joined = settings.renew([("flag", {"keep": 5})], launched, [("join", {"seed": 1})])
    assert joined["seed"] == Setting(1, "join")
    with pytest.raises(ValueError, match=r"seed was 1 \(join\) and cannot become 2 \(flag\)"):
        settings.renew([("flag", {"seed": 2})], joined)


def test_a_continued_run_keeps_what_was_set_and_where_it_came_from_but_not_what_one_launch_asked():
    first = settings.renew([("flag", {"keep": 5, "resume": "fresh"})], {}, [("join", {"seed": 1})])
    again = settings.renew([], first, [("join", {"seed": 9, "threads": 3})])
    assert again["keep"] == Setting(5, "flag")
    assert again["seed"] == Setting(1, "join")
    assert again["threads"] == Setting(3, "join")
    assert again["resume"] == Setting("auto", "default")


def test_run_toml_reads_as_it_was_written(tmp_path):
    record = Record(
        run_id="a1",
        command=("train.py", '--name="x"', "naïve\n", "\U0001f600", "\x7f\x01"),
        settings=settings.resolve([("flag", {"exact": False, "checkpoints": "file:///a b"})]),
        environment={"torch": "2.13.0+cpu", "odd key": "1"},
        armed=True,
    )
    path = tmp_path / "run.toml"
    settings.write(path, record)
    assert settings.read(path) == record
    assert list(tmp_path.iterdir()) == [path]
    assert settings.values(record.settings) == replace(
        Settings(), exact=False, checkpoints="file:///a b"
    )


def test_no_run_toml_is_no_record(tmp_path):
    assert settings.read(tmp_path / "run.toml") is None


def test_a_name_that_is_no_text_does_not_make_run_toml_unreadable(tmp_path):
    record = Record(run_id="a1", command=("\udcff.py",), settings={}, environment={})
    path = tmp_path / "run.toml"
    settings.write(path, record)
    assert settings.read(path) == replace(record, command=("?.py",))


_HEAD = "schema = 1\nrun_id = 'a'\ncommand = ['train.py']\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "schema = 1",
        "schema = 99\nrun_id='a'\ncommand=['train.py']",
        "schema = '1'\nrun_id='a'\ncommand=['train.py']",
        "= =",
        "schema = 1\nrun_id = 3\ncommand = ['train.py']",
        "schema = 1\nrun_id = 'a'\ncommand = []",
        "schema = 1\nrun_id = 'a'\ncommand = 5",
        _HEAD + "environment = 3",
        _HEAD + "settings = 3",
        _HEAD + "[settings]\nseed = 3",
        _HEAD + "[settings.seed]\nvalue = 'x'\norigin = 'flag'",
    ],
)
def test_a_damaged_run_toml_is_a_clear_error(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match="cannot be read as a run's settings"):
        settings.read(path)


@pytest.mark.parametrize(
    ("asked", "kept"),
    [("here", "/folder/here"), ("/a b", "/a b"), ("file:///x", "file:///x"), ("", "")],
)
def test_a_folder_of_checkpoints_is_the_same_wherever_the_next_launch_is_made(
    tmp_path, monkeypatch, asked, kept
):
    monkeypatch.chdir(tmp_path)
    found = settings.resolve([("join", {"checkpoints": asked})])["checkpoints"].value
    assert str(found).replace(str(tmp_path), "/folder") == kept


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("seed", 1 << 63, "seed = 9223372036854775808 is above 9223372036854775807"),
        ("seed", "1" + "0" * 4000, f"seed = 1{'0' * 59}… is above 9223372036854775807"),
        pytest.param(
            *("seed", 10**5000, f"seed = a number of thousands of digits is above {2**63 - 1}"),
            id="a number that Python does not write",
        ),
        ("keep", "9" * 5000, f"keep = '{'9' * 59}… is not a whole number"),
        ("resume", "9" * 5000, f"resume = '{'9' * 59}… is neither 'auto', 'fresh' nor a step"),
        ("resume", -1, "resume = -1 is neither 'auto', 'fresh' nor a step"),
        ("resume", True, "resume = True is not a text"),
        ("checkpoints", None, "checkpoints = None is not a text"),
        ("checkpoints", "a\0b", "checkpoints = 'a\\x00b' is not a text"),
        ("exact", "x" * 5000, f"exact = '{'x' * 59}… is neither true nor false"),
    ],
)
def test_a_value_out_of_its_range_is_named_in_a_line_that_fits_a_screen(key, value, message):
    with pytest.raises(ValueError, match=key) as caught:
        settings.resolve([("join", {key: value})])
    assert str(caught.value) == f"join: {message}"


def test_a_folder_may_be_given_as_a_path_and_a_step_as_a_number(tmp_path):
    resolved = settings.resolve([("join", {"checkpoints": tmp_path, "resume": 30})])
    assert (resolved["checkpoints"].value, resolved["resume"].value) == (str(tmp_path), "30")


def test_the_home_of_nobody_is_a_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = settings.resolve([("flag", {"checkpoints": "~nobody-here/x"})])["checkpoints"].value
    assert found == str(Path.cwd() / "~nobody-here" / "x")


def test_more_threads_than_any_machine_has_are_refused_by_name():
    with pytest.raises(ValueError, match="threads = 100000 is above 1024"):
        settings.resolve([("flag", {"threads": "100000"})])


def test_two_that_change_the_record_at_once_take_turns(tmp_path: Path):
    path = tmp_path / "run.toml"
    settings.write(path, Record("run-1", ("t.py",), settings.resolve([]), {}))

    def note(key: str) -> None:
        with settings.turn(path):
            record = settings.read(path)
            assert record is not None
            time.sleep(0.001)
            settings.write(path, replace(record, environment={**record.environment, key: key}))

    keys = [str(number) for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(note, keys))
    record = settings.read(path)
    assert record is not None
    assert sorted(record.environment) == sorted(keys)


def test_what_a_killed_writer_left_beside_run_toml_goes_with_the_next_change(tmp_path):
    path = tmp_path / "run.toml"
    (tmp_path / ".run.toml.123").write_bytes(b"half of")
    with settings.turn(path):
        assert [left.name for left in tmp_path.iterdir()] == [".run.toml.lock"]
