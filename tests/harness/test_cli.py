import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness import cli
from harness.cli import main
from harness.commands import DONE, NO, USAGE
from tests.harness import stories

PROBE = """
import sys
from harness.cli import main
status = main(sys.argv[1:])
sys.stdout.flush()
print(status, *(name for name in ("torch", "numpy", "fsspec") if name in sys.modules), file=sys.stderr)
"""


def echo(argv: list[str]) -> int:
    """Say what one was given.

    And no more.
    """
    print("given:", *argv)
    return 75


def interrupted(argv: list[str]) -> int:
    """End as Ctrl-C has it."""
    raise KeyboardInterrupt


@pytest.fixture
def other_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        importlib.metadata.EntryPoint("echo", "tests.harness.test_cli:echo", cli.GROUP),
        importlib.metadata.EntryPoint("ctrl-c", "tests.harness.test_cli:interrupted", cli.GROUP),
        importlib.metadata.EntryPoint("gone", "tests.harness.nowhere:gone", cli.GROUP),
    ]
    monkeypatch.setattr(
        cli, "commands_of_other_rooms", lambda: {point.name: point for point in points}
    )


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=True
    )


def test_reading_a_run_needs_neither_torch_nor_numpy(tmp_path):
    run_dir = str(stories.write(tmp_path / "run", stories.KILLED_ONCE).path)
    for arguments in (
        ["--help"],
        ["report", run_dir],
        ["report", run_dir, "--json"],
        ["verify", run_dir, run_dir],
        ["export", "--help"],
        ["export", run_dir, "--host", "203.0.113.1"],  # not ours to listen on
    ):
        status = "1" if "--host" in arguments else "0"
        assert ran(*arguments).stderr.splitlines()[-1] == status, arguments


def test_help_lists_every_command_with_one_line(capsys):
    assert main(["--help"]) == DONE
    listed = capsys.readouterr().out
    for command, line in {
        "export": "Serve a run's metrics for Prometheus until told to stop.",
        "report": "Say where the time of a run went and what broke.",
        "verify": "Say whether two runs did the same, bit for bit.",
        "faults": "",
        "run": "",
    }.items():
        assert re.search(rf"^│ {command}  +{re.escape(line)}", listed, re.MULTILINE), command
    assert "not installed" not in listed


def test_the_first_sentence_of_another_rooms_command_is_read_without_importing_it(
    capsys, other_rooms
):
    assert main(["--help"]) == DONE
    listed = capsys.readouterr().out
    assert "│ echo         Say what one was given.  " in listed
    assert "│ gone         (tests.harness.nowhere:gone is not installed)" in listed


def test_another_rooms_command_gets_all_its_arguments_and_gives_the_status(capsys, other_rooms):
    assert main(["echo", "--help", "--", "-x", "report"]) == 75
    assert capsys.readouterr().out == "given: --help -- -x report\n"


def test_ctrl_c_ends_a_command_without_a_traceback(capsys, other_rooms):
    assert main(["ctrl-c"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_command_that_cannot_be_loaded_is_one_line(capsys, other_rooms):
    assert main(["gone"]) == USAGE
    assert capsys.readouterr().err == (
        "harness: `harness gone` cannot be loaded from tests.harness.nowhere:gone:"
        " No module named 'tests.harness.nowhere'\n"
    )


def test_report_prints_for_people_and_for_programs(tmp_path, capsys):
    path = str(stories.write(tmp_path / "demo", stories.KILLED_ONCE).path)
    assert main(["report", path]) == DONE
    assert capsys.readouterr().out.startswith("run demo  finished  2 ranks, 2 attempts")
    assert main(["report", path, "--json"]) == DONE
    assert json.loads(capsys.readouterr().out)["goodput"] == 0.375


def test_verify_says_exact_or_where_two_runs_part(tmp_path, capsys):
    run = str(stories.write(tmp_path / "run", stories.KILLED_ONCE).path)
    twin = str(stories.write(tmp_path / "twin", stories.TROUBLED).path)
    assert main(["verify", run, run]) == DONE
    assert capsys.readouterr().out.startswith("exact: ")
    assert main(["verify", run, twin]) == NO
    assert capsys.readouterr().out.startswith("different: ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("report", "{}/none"), "no run at {}/none: there is no such directory"),
        (("report", "{}"), "no run at {}: it holds neither events/ nor run.toml"),
        (("export", "{}/none"), "no run at {}/none: there is no such directory"),
        (("verify", "{}", "{}/none"), "no run at {}: it holds neither events/ nor run.toml"),
    ],
)
def test_a_wrong_path_is_one_clear_line(tmp_path, capsys, arguments: Sequence[str], line: str):
    assert main([argument.format(tmp_path) for argument in arguments]) == USAGE
    assert capsys.readouterr().err.splitlines()[0] == f"harness: {line.format(tmp_path)}"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["report"],
        ["repot"],
        ["export", ".", "--port", "x"],
        ["export", ".", "--port", "1.5"],
        ["simulate", "--preset", "llama3", "--seeds", "1.5"],
        ["plan", "--gpus", "8", "--gpus-per-node", "1.5"],
        ["checkpoint", "import", "x.pt", "--to", "x", "--step", "1.5"],
    ],
)
def test_a_mistake_in_how_it_is_called_exits_2(arguments, capsys):
    assert main(arguments) == USAGE


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--port", "-1"], "harness export: --port -1 is no TCP port: it is 0 to 65535"),
        (["--port", "70000"], "harness export: --port 70000 is no TCP port: it is 0 to 65535"),
        (["--host", ""], "harness export: --host '' is no address: name one; 0.0.0.0 is all of"),
        (["--openmetrics", "--every", "nan"], "harness: --every nan is no interval: it is 0.001"),
    ],
)
def test_what_an_exporter_cannot_do_is_one_line_and_2(tmp_path, flags, line):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    command = [sys.executable, "-m", "harness", "export", str(run_dir.path), *flags]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (told.returncode, told.stdout) == (USAGE, "")
    assert told.stderr.startswith(line)
    assert told.stderr.count("\n") == 1


def test_a_log_that_is_no_file_is_one_line_whoever_reads_it(tmp_path, capsys):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    (run_dir.events / "rank-7.jsonl").mkdir()
    for command in (["report"], ["export", "--openmetrics"], ["target", "--loss", "2"]):
        assert main([*command, str(run_dir.path)]) == NO
        assert "it is no file, and an event log is made of files" in capsys.readouterr().err


def test_a_folder_in_the_place_of_run_toml_is_one_line_whoever_reads_it(tmp_path, capsys):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    run_dir.settings.unlink(missing_ok=True)
    run_dir.settings.mkdir()
    for command in (["report"], ["export", "--openmetrics"], ["sweep"]):
        assert main([*command, str(run_dir.path)]) == NO
        assert f"Is a directory: '{run_dir.settings}'" in capsys.readouterr().err


def test_a_log_of_a_later_version_is_refused_in_one_line(tmp_path, capsys):
    run_dir = stories.write(tmp_path / "run", ())
    (run_dir.events / "rank-0.jsonl").write_text('{"schema": 99}\n')
    for arguments in (["report", str(run_dir.path)], ["verify", *[str(run_dir.path)] * 2]):
        assert main(arguments) == NO
        assert "schema 99 is newer than 1" in capsys.readouterr().err


def test_the_module_is_the_command():
    told = subprocess.run(
        [sys.executable, "-m", "harness", "--version"], capture_output=True, text=True, check=True
    )
    assert told.stdout == f"harness {importlib.metadata.version(cli.DISTRIBUTION)}\n"


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    command = f"{sys.executable} -m harness report {run_dir.path} --json | true"
    told = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert told.stderr == ""


def test_a_file_in_place_of_a_run_is_no_run(tmp_path, capsys):
    file = Path(tmp_path / "file")
    file.write_text("")
    assert main(["report", str(file)]) == USAGE
    assert "that is no directory" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full")
@pytest.mark.parametrize("command", ["report", "export --openmetrics"])
def test_a_disk_that_is_full_ends_a_command_in_words(command, tmp_path):
    run = stories.write(tmp_path / "run", stories.KILLED_ONCE).path
    command = f"{sys.executable} -m harness {command} {run} > /dev/full"
    told = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert told.returncode == 1
    last = "harness: what was asked for cannot be written whole: No space left on device"
    assert told.stderr.splitlines()[-1] == last
    assert "Traceback" not in told.stderr
