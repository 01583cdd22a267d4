"""What a launch says of storage that it cannot use, before any rank starts."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = "import harness\nprint('a rank started')\n"


def launch(tmp_path: Path, checkpoints: str) -> "subprocess.CompletedProcess[str]":
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    flags = ["--run", str(tmp_path / "run"), "--nproc-per-node", "1", "--no-metrics"]
    command = [sys.executable, "-m", "harness", "run", *flags, "--checkpoints", checkpoints]
    return subprocess.run(
        [*command, str(script)], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_bucket_that_is_not_there_is_said_in_one_line_and_fixes_nothing(tmp_path, s3_url):
    ended = launch(tmp_path, s3_url.replace("://harness/", "://no-such-bucket/"))

    assert ended.returncode == 2
    line, hint = ended.stderr.strip().splitlines()
    assert line.startswith("harness run: the storage no-such-bucket/")
    assert "cannot be written: FileNotFoundError: " in line
    assert "The specified bucket does not exist" in line
    assert hint == "(see harness run --help)"
    assert not (tmp_path / "run/run.toml").exists()
    assert "a rank started" not in ended.stdout


@pytest.mark.parametrize("url", ["s3://key:hunter2@bucket/run", "gs://bucket/run?token=hunter2"])
def test_credentials_in_a_url_are_refused_and_written_nowhere(tmp_path, url):
    ended = launch(tmp_path, url)

    assert ended.returncode == 2
    assert "has credentials in it" in ended.stderr
    assert "hunter2" not in ended.stdout + ended.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "train.py"]
    assert all(b"hunter2" not in path.read_bytes() for path in files)
