"""`harness checkpoint` as people call it, on real checkpoints."""

import io
import json
import subprocess
import sys

import pytest

from harness import settings
from harness.cli import main
from harness.rundir import RunDir
from launch.preparation import held
from tests.harness.checkpoint.world import Rank, Run
from tests.harness.test_cli import PROBE


@pytest.fixture
def run_dir(tmp_path):
    """A run of which attempt 2 goes on from step 20 of attempt 1, which had got to step 30."""
    run_dir = RunDir.at(tmp_path / "run")
    run_dir.create()
    record = settings.Record("run", ("train.py",), settings.resolve([]), {})
    settings.write(run_dir.settings, record)
    run = Run(run_dir.checkpoints)
    run.commit(10, 20, 30)
    assert [found.step for found in run.choose(resume="20")] == [20, 20]
    return run_dir


@pytest.fixture
def run(run_dir):
    return Run(run_dir.checkpoints)


def flip(run: Run, step: int, name: str = "state.json") -> None:
    path = run.directory(step) / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def said(capsys) -> tuple[list[str], list[str]]:
    captured = capsys.readouterr()
    return captured.out.splitlines(), captured.err.splitlines()


def listed(capsys, where: object, *options: str) -> dict[int, tuple[str, object]]:
    """State and verification of each checkpoint, by step, as programs read it."""
    main(["checkpoint", "ls", str(where), "--json", *options])
    told = json.loads(capsys.readouterr().out)
    return {row["step"]: (row["state"], row["verified"]) for row in told["checkpoints"]}


def test_ls_shows_what_each_checkpoint_is_to_the_run(run_dir, run, capsys):
    flip(run, 20)
    assert run.choose()[0].step == 10
    unfinished = run.root / "step-00000040-3"
    unfinished.mkdir()
    (unfinished / "shard-00000-of-00002.safetensors").write_bytes(b"half")
    capsys.readouterr()

    assert main(["checkpoint", "ls", str(run_dir.path)]) == 0

    out, err = said(capsys)
    assert out[0] == f"run run, checkpoints in {run.root}"
    rows = [line.split() for line in out[3:7]]
    assert [(row[0], row[1], row[6:8]) for row in rows[:1]] == [("10", "1", ["committed"])]
    assert [row[:2] for row in rows] == [["10", "1"], ["20", "1"], ["30", "1"], ["40", "3"]]
    assert "set aside" in out[4]
    assert "checksum: " in out[4]
    assert "state.json has checksum" in out[4]
    assert "off the chain" in out[5]
    assert "unfinished" in out[6]
    assert out[-3:] == [
        "attempt 1 began from nothing",
        "attempt 2 descends from attempt 1 at step 20; it is not in the history of the newest one",
        "attempt 3 descends from attempt 1 at step 10",
    ]
    assert err == []


def test_ls_for_programs_has_a_schema(run_dir, run, capsys):
    assert main(["checkpoint", "ls", str(run_dir.path), "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["run_id"], told["root"]) == (1, "run", str(run.root))
    first = told["checkpoints"][0]
    size = sum(path.stat().st_size for path in run.directory(10).iterdir())
    assert 0 <= first.pop("age_s") < 600
    assert first == {
        "name": "step-00000010-1",
        "step": 10,
        "attempt": 1,
        "size_bytes": size,
        "state": "committed",
        "reason": "",
        "verified": None,
        "damage": "",
    }
    assert told["lineage"] == [
        {"attempt": 1, "parent": None, "step": 0, "on_chain": True},
        {"attempt": 2, "parent": 1, "step": 20, "on_chain": True},
    ]


def test_ls_verifies_where_asked(run_dir, run, capsys):
    assert listed(capsys, run_dir.path) == {
        10: ("committed", None),
        20: ("committed", None),
        30: ("off the chain", None),
    }
    flip(run, 10)
    assert listed(capsys, run_dir.path, "--verify") == {
        10: ("committed", False),
        20: ("committed", True),
        30: ("off the chain", True),
    }
    assert main(["checkpoint", "ls", str(run_dir.path), "--verify"]) == 1


def test_a_url_will_do_for_a_run(run, capsys):
    assert set(listed(capsys, f"file://{run.root}")) == {10, 20, 30}
    assert set(listed(capsys, run.root)) == {10, 20, 30}


def test_verify_reads_all_or_one(run_dir, run, capsys):
    assert main(["checkpoint", "verify", str(run_dir.path)]) == 0
    assert said(capsys)[0] == [
        "step-00000010-1: whole, 3 files",
        "step-00000020-1: whole, 3 files",
        "step-00000030-1: whole, 3 files",
    ]
    flip(run, 20)

    assert main(["checkpoint", "verify", str(run_dir.path)]) == 1
    assert said(capsys)[0][1].startswith("step-00000020-1: checksum: state.json has checksum ")
    assert main(["checkpoint", "verify", str(run_dir.path), "20"]) == 1
    assert main(["checkpoint", "verify", str(run_dir.path), "30"]) == 0
    capsys.readouterr()

    assert main(["checkpoint", "verify", str(run_dir.path), "7"]) == 2
    assert said(capsys)[1] == [
        f"harness checkpoint: no checkpoint of step 7 in {run.root}; there are: 10, 20, 30"
    ]


def test_where_there_is_no_checkpoint_the_answer_is_no(tmp_path, capsys):
    Run(tmp_path / "checkpoints").store()
    assert main(["checkpoint", "verify", str(tmp_path / "checkpoints")]) == 1
    assert main(["checkpoint", "ls", str(tmp_path / "checkpoints")]) == 0
    assert said(capsys)[0][-1] == "no checkpoints"


def test_where_there_is_no_run_nothing_is_made(tmp_path, capsys):
    for command in (["ls"], ["verify"], ["rm"], ["export"]):
        rest = ["10", "--to", str(tmp_path / "x.pt")] if command == ["export"] else []
        assert main(["checkpoint", *command, str(tmp_path / "none"), *rest]) == 2
        (line,) = said(capsys)[1]
        assert line.startswith("harness checkpoint: no run keeps its checkpoints in ")
    assert list(tmp_path.iterdir()) == []


def test_rm_removes_what_is_named_and_nothing_else(run_dir, run, capsys):
    assert main(["checkpoint", "rm", str(run_dir.path), "30", "--yes"]) == 0
    assert said(capsys)[0][-1] == "removed step-00000030-1"
    assert run.steps() == [10, 20]

    assert main(["checkpoint", "rm", str(run_dir.path), "step-00000020-1", "--yes"]) == 0
    assert run.steps() == [10]
    assert [found.step for found in run.choose()] == [10, 10]


def test_rm_keeps_the_last_good_one_unless_it_is_forced(run_dir, run, capsys):
    (run.directory(10) / "state.json").write_bytes(b"")  # no good any more
    assert main(["checkpoint", "rm", str(run_dir.path), "20", "--yes"]) == 1
    (line,) = said(capsys)[1]
    assert line == (
        "harness checkpoint: step 20 is the last good checkpoint of the run: add --force to"
        " remove it all the same"
    )
    assert run.steps() == [10, 20, 30]

    assert main(["checkpoint", "rm", str(run_dir.path), "20", "--yes", "--force"]) == 0
    assert run.steps() == [10, 30]


@pytest.mark.parametrize(
    ("answer", "status", "left"), [("y\n", 0, [20, 30]), ("\n", 1, [10, 20, 30])]
)
def test_rm_asks(run_dir, run, capsys, monkeypatch, answer, status, left):
    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return str(answer)

    monkeypatch.setattr(sys, "stdin", Terminal())
    assert main(["checkpoint", "rm", str(run_dir.path), "10"]) == status
    assert said(capsys)[0][0].startswith("step-00000010-1: committed, ")
    assert run.steps() == left


def test_rm_without_anyone_to_ask_removes_nothing(run_dir, run, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(["checkpoint", "rm", str(run_dir.path), "10"]) == 2
    assert main(["checkpoint", "rm", str(run_dir.path)]) == 2
    assert main(["checkpoint", "rm", str(run_dir.path), "7", "--yes"]) == 2
    assert said(capsys)[1] == [
        "harness checkpoint: nobody is there to ask: add --yes",
        "harness checkpoint: say which steps are to go",
        "harness checkpoint: no checkpoint of step 7; there are: 10, 20, 30",
    ]
    assert run.steps() == [10, 20, 30]


def test_what_is_exported_makes_a_new_run_or_goes_into_one(run_dir, run, tmp_path, capsys):
    at = tmp_path / "state.pt"
    assert main(["checkpoint", "export", str(run_dir.path), "30", "--to", str(at)]) == 0
    assert said(capsys)[0] == [f"step-00000030-1, verified, is in {at}"]
    fresh = tmp_path / "fresh"

    assert main(["checkpoint", "import", str(at), "--to", str(fresh)]) == 2
    assert (
        "say which script will go on with the checkpoint (--script train.py)" in said(capsys)[1][0]
    )
    assert not fresh.exists()
    arguments = ["checkpoint", "import", str(at), "--to", str(fresh), "--script", "train.py"]
    assert main([*arguments, "--step", "5"]) == 0

    store = RunDir.at(fresh).checkpoints
    assert said(capsys)[0] == [
        f"step-00000005-1, verified, is in {store}: the run goes on from step 5"
    ]
    record = settings.read(RunDir.at(fresh).settings)
    assert record is not None
    found = Run(store, run_id=record.run_id).choose()
    assert [(f.step, f.saved_by, f.own["rank"], f.own["step"]) for f in found] == [
        (5, 1, 0, 30.0),
        (5, 1, 1, 30.0),
    ]


def test_an_import_takes_the_place_of_what_is_there_only_if_that_is_meant(
    run_dir, run, tmp_path, capsys
):
    at = tmp_path / "state.safetensors"
    assert main(["checkpoint", "export", str(run_dir.path), "10", "--to", str(at)]) == 0
    capsys.readouterr()

    assert main(["checkpoint", "import", str(at), "--to", str(run_dir.path)]) == 1
    (line,) = said(capsys)[1]
    assert line == (
        "harness checkpoint: the run has checkpoints up to step 20, and would go on from this one"
        " instead: add --force if that is meant"
    )
    assert [found.step for found in run.choose()] == [20, 20]
    assert main(["checkpoint", "import", str(at), "--to", str(run_dir.path), "--force"]) == 0

    assert [found.step for found in run.choose()] == [10, 10]


def test_a_damaged_checkpoint_is_not_exported(run_dir, run, tmp_path, capsys):
    flip(run, 30)
    at = tmp_path / "state"

    assert main(["checkpoint", "export", str(run_dir.path), "30", "--to", str(at)]) == 1

    assert said(capsys)[1][0].startswith("harness checkpoint: checksum: state.json has checksum")
    assert not at.exists()


def test_what_is_exported_is_one_step_and_goes_where_there_is_a_folder(run_dir, tmp_path, capsys):
    for step, at, line in (
        ("all", tmp_path / "a.pt", "no checkpoint of step all in "),
        ("10", tmp_path / "none/a.pt", f"{tmp_path}/none is no folder of this machine: make it"),
        ("10", tmp_path / "none/a", f"{tmp_path}/none is no folder of this machine: make it"),
        ("10", "s3://bucket/a", "s3:/bucket is no folder of this machine: make it"),
        ("10", "/proc/a.pt", "/proc/a.pt cannot be written: "),
        ("10", "/proc/a.safetensors", "/proc/a.safetensors cannot be written: "),
    ):
        assert main(["checkpoint", "export", str(run_dir.path), step, "--to", str(at)]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"harness checkpoint: {line}")
        assert told.count("\n") == 1
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("step", ["-1", str(2**63)])
def test_an_import_at_what_is_no_step_makes_none(run_dir, tmp_path, capsys, step):
    at = tmp_path / "state.safetensors"
    assert main(["checkpoint", "export", str(run_dir.path), "10", "--to", str(at)]) == 0
    capsys.readouterr()

    flags = ["--to", str(tmp_path / "new"), "--script", "train.py", "--step", step]
    assert main(["checkpoint", "import", str(at), *flags]) == 2

    assert f"--step {step} is not a step: it is from 0 to {2**63 - 1}" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_nothing_is_imported_into_a_run_that_is_at_work(run_dir, run, tmp_path, capsys):
    at = tmp_path / "state.safetensors"
    assert main(["checkpoint", "export", str(run_dir.path), "10", "--to", str(at)]) == 0
    newest = run.store().newest_attempt()

    with held(run_dir):
        assert main(["checkpoint", "import", str(at), "--to", str(run_dir.path), "--force"]) == 2

    assert f"a launcher is at work in {run_dir.path}, and nothing" in capsys.readouterr().err
    assert run.store().newest_attempt() == newest


def test_a_run_is_made_for_a_script_that_has_a_name(run_dir, tmp_path, capsys):
    at = tmp_path / "state.safetensors"
    assert main(["checkpoint", "export", str(run_dir.path), "10", "--to", str(at)]) == 0
    for script in ("", "/"):
        flags = ["--to", str(tmp_path / "new"), "--script", script]
        assert main(["checkpoint", "import", str(at), *flags]) == 2
        assert f"--script {script!r} names no script" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_step_is_named_alike_whatever_is_done_to_it(run_dir, run, capsys):
    assert main(["checkpoint", "verify", str(run_dir.path), "0010"]) == 0
    assert main(["checkpoint", "rm", str(run_dir.path), "0010", "--yes"]) == 0
    capsys.readouterr()
    assert listed(capsys, run_dir.path).keys() == {20, 30}


def test_a_mistake_in_the_call_is_told(run_dir, capsys):
    assert main(["checkpoint", "export", str(run_dir.path), "30"]) == 2
    assert main(["checkpoint", "import", "/none.pt", "--to", str(run_dir.path)]) == 2
    assert "/none.pt: No such file or directory" in capsys.readouterr().err
    assert main(["checkpoint"]) == 2
    assert main(["checkpoint", "ls", "--help"]) == 0


def test_the_step_of_two_attempts_is_that_of_the_run(run, tmp_path, run_dir, capsys):
    def body(rank: Rank) -> bool:
        return rank.save(20, value=5.0)

    assert run.attempt(body, resume="10") == [True, True]
    at = tmp_path / "state.pt"

    assert main(["checkpoint", "export", str(run_dir.path), "20", "--to", str(at)]) == 0

    assert said(capsys)[0] == [f"step-00000020-3, verified, is in {at}"]


def test_everything_can_be_done_to_what_is_in_an_object_store(s3_url, tmp_path, capsys):
    run = Run(tmp_path, url=s3_url)
    run.commit(10, 20)

    def told(command: str, *rest: str) -> list[str]:
        assert main(["checkpoint", command, s3_url, *rest]) == 0, capsys.readouterr()
        return said(capsys)[0]

    assert told("verify") == ["step-00000010-1: whole, 3 files", "step-00000020-1: whole, 3 files"]
    assert listed(capsys, s3_url, "--verify") == {10: ("committed", True), 20: ("committed", True)}
    told("export", "10", "--to", str(tmp_path / "state.pt"))
    assert told("rm", "10", "--yes")[-1] == "removed step-00000010-1"
    assert (
        main(["checkpoint", "import", str(tmp_path / "state.pt"), "--to", s3_url, "--force"]) == 0
    )

    assert [found.step for found in run.choose()] == [10, 10]


def test_looking_at_checkpoints_needs_no_torch(run_dir):
    for arguments in (["ls"], ["ls", "--json", "--verify"], ["verify"], ["rm", "30", "--yes"]):
        command, *rest = arguments
        done = subprocess.run(
            [sys.executable, "-c", PROBE, "checkpoint", command, str(run_dir.path), *rest],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr.splitlines()[-1] == "0 fsspec", done.stderr


@pytest.mark.parametrize("where", ["run", "checkpoints"])
def test_what_a_run_keeps_beneath_its_faults_is_looked_at_as_it_is(run_dir, capsys, where):
    faulty = f"chaos::file://{run_dir.checkpoints}"
    asked = settings.resolve([("flag", {"checkpoints": faulty})])
    settings.write(run_dir.settings, settings.Record("run", ("train.py",), asked, {}))
    shown = listed(capsys, run_dir.path if where == "run" else faulty)
    assert sorted(shown) == [10, 20, 30]
