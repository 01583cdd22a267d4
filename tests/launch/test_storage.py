"""What a launch says of storage that it cannot use, before any rank starts."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.events import SaveCommitted, TrainingResumed
from harness.journal import read
from harness.rundir import RunDir

STEPS = Path(__file__).parent / "scripts" / "steps.py"
SCRIPT = "import harness\nprint('a rank started')\n"


def launch(tmp_path: Path, checkpoints: str) -> "subprocess.CompletedProcess[str]":
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    return launched(tmp_path, "--checkpoints", checkpoints, str(script))


def launched(tmp_path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    flags = ["--run", str(tmp_path / "run"), "--nproc-per-node", "1", "--no-metrics"]
    command = [sys.executable, "-m", "harness", "run", *flags, *arguments]
    return subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
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


@pytest.mark.processes
def test_a_run_saves_to_and_resumes_from_a_kind_of_storage_that_no_one_here_has_met(
    tmp_path, flat_url
):
    url = flat_url("flat")
    for steps in ("4", "6"):
        ended = launched(
            tmp_path, "--checkpoints", url, "--save-every-steps", "2", str(STEPS), steps
        )
        assert ended.returncode == 0, ended.stderr

    events = [entry.event for entry in read(RunDir.at(tmp_path / "run"))]
    saved = [event.step for event in events if isinstance(event, SaveCommitted)]
    assert {4, 6} <= set(saved)  # the last of each launch; one before may wait for the newer state
    assert [event.step for event in events if isinstance(event, TrainingResumed)][-1] == 4
    assert not any(tmp_path.rglob("flat:"))


@pytest.mark.parametrize(
    ("kind", "did"),
    [
        ("overwriting", "it overwrote a file that was to be created only if it was not there"),
        ("stale", "it did not list a file that had just been written: listings are stale"),
    ],
)
def test_storage_that_cheats_is_refused_in_one_line_before_a_rank_starts(
    tmp_path, flat_url, kind, did
):
    ended = launch(tmp_path, flat_url(kind))

    assert ended.returncode == 2
    line, _ = ended.stderr.strip().splitlines()
    assert line.startswith("harness run: the storage place/run cannot hold checkpoints: ")
    assert did in line
    assert "a rank started" not in ended.stdout
    assert not (tmp_path / "run/run.toml").exists()
    assert not any(tmp_path.rglob(f"{kind}:"))


def test_a_kind_of_storage_that_fsspec_does_not_know_is_said_in_one_line(tmp_path):
    ended = launch(tmp_path, "kind://place/run")

    assert ended.returncode == 2
    line, _ = ended.stderr.strip().splitlines()
    assert line.startswith(
        "harness run: checkpoints at 'kind://place/run': fsspec knows no storage"
    )
    assert not any(tmp_path.rglob("kind:"))


FULL = """
set -e
mount -t tmpfs -o size=6m none "$1"
run() { STEP_S=1 WIDTH=300 "$2" -m harness run --run "$1/run" --nproc-per-node 1 --no-metrics --threads 1 \
    --save-every-steps 1 --keep 3 "${@:3}"; }
run "$1" "$2" "$3" 4
head -c 10m /dev/zero > "$1/other" 2>/dev/null || true
echo FULL >&2
run "$1" "$2" "$3" 6 || echo "REFUSED $?" >&2
ls "$1/run/checkpoints" >&2
run "$1" "$2" --keep-when-full 1 "$3" 6
echo "RAN $?" >&2
ls "$1/run/checkpoints" >&2
"""


def on_a_small_disk(
    tmp_path: Path, script: str, program: Path
) -> "subprocess.CompletedProcess[str]":
    """Run a script of bash that may mount a disk for itself alone."""
    try_out = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run(try_out, check=False).returncode != 0:
        pytest.skip("this process may not mount a small disk")
    command = ["unshare", "-rm", "bash", "-c", script, "small"]
    return subprocess.run(
        [*command, str(tmp_path), sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


FILLING = """
import os
with open(os.environ["HARNESS_RUN_DIR"] + "/other", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
raise ArithmeticError("no good")
"""


@pytest.mark.processes
def test_a_rank_that_found_no_room_to_say_why_it_failed_is_not_said_to_have_said_it(
    tmp_path, tmp_path_factory
):
    program = tmp_path_factory.mktemp("program") / "train.py"
    program.write_text(FILLING)
    script = """
mount -t tmpfs -o size=2m none "$1"
"$2" -m harness run --run "$1/run" --nproc-per-node 1 --no-metrics --max-restarts 0 "$3"
"""
    ended = on_a_small_disk(tmp_path, script, program)

    assert ended.returncode == 1, ended.stderr
    reason = f"it could not say why, since no room is left in {tmp_path}/run"
    assert reason in ended.stderr
    assert "it said why in" not in ended.stderr


FULL_AT_FIRST = """
import os
room = os.environ["HARNESS_RUN_DIR"] + "/other"
if os.environ["HARNESS_ATTEMPT"] == "4":
    os.remove(room)
    print("there is room")
else:
    with open(room, "ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(file.tell() - 48 * 1024)
    os._exit(1)
"""


@pytest.mark.processes
def test_ranks_that_meet_a_full_disk_are_tried_again_as_after_an_accident(
    tmp_path, tmp_path_factory
):
    program = tmp_path_factory.mktemp("program") / "train.py"
    program.write_text(FULL_AT_FIRST)
    script = """
mount -t tmpfs -o size=2m none "$1"
"$2" -m harness run --run "$1/run" --nproc-per-node 1 --no-metrics "$3" && cat "$1"/run/logs/*/*
"""
    ended = on_a_small_disk(tmp_path, script, program)

    assert ended.returncode == 0, ended.stderr
    for attempt in (1, 2, 3):
        why = f"attempt {attempt}: rank 0 exit code 1; no room is left in {tmp_path}/run; restart"
        assert why in ended.stdout
    assert "there is room" in ended.stdout


@pytest.mark.processes
def test_a_full_disk_is_given_room_by_a_launch_that_is_told_how_many_checkpoints_are_enough(
    tmp_path,
):
    ended = on_a_small_disk(tmp_path, FULL, STEPS)

    assert ended.returncode == 0, ended.stderr
    _, after = ended.stderr.split("FULL\n")
    refusal, after = after.split("REFUSED 2\n")
    assert "No space left on device" in refusal
    assert "how many checkpoints are enough when it is full: --keep-when-full N (now 0, and 3" in (
        refusal
    )
    left, after = after.split("harness run: ", 1)
    assert left.split() == ["attempts", "run.json", *(f"step-0000000{n}-1" for n in (2, 3, 4))]
    for step in (2, 3):
        assert f"no room is left: the checkpoint of step {step} was deleted for it" in after
    assert "RAN 0" in after
    assert "step-00000006-" in after


PLAN = """
schema = 1
seed = 1
[[storage]]
kind = "hang"
operations = ["list"]
name = "attempts"
nth = 1
"""


@pytest.mark.processes
def test_a_storage_that_hangs_as_an_attempt_is_claimed_is_waited_for(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    flags = ["--faults", "plan.toml", "--checkpoints", f"chaos::file://{tmp_path}/kept"]
    ended = launched(tmp_path, *flags, "--storage-timeout-s", "5", str(STEPS), "2")

    assert ended.returncode == 0, ended.stderr
    assert "no attempt can be claimed in the storage: [Errno 110]" in ended.stdout
    assert "; tried again in 1 s" in ended.stdout


FLIPPED = """
schema = 1
seed = 1
[[storage]]
kind = "bit_flip"
operations = ["read"]
"""


@pytest.mark.processes
def test_a_run_whose_spoilt_storage_was_refused_can_be_asked_for_anew(tmp_path):
    (tmp_path / "plan.toml").write_text(FLIPPED)
    flags = ["--faults", "plan.toml", "--checkpoints", f"chaos::file://{tmp_path}/kept"]
    refused = launched(tmp_path, *flags, str(STEPS), "2")
    assert refused.returncode == 2, refused.stderr

    anew = launched(tmp_path, str(STEPS), "2")
    assert anew.returncode == 0, anew.stderr
