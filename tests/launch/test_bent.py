"""Run directories in which something is not what it should be: one clear line, and nothing is left behind."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.rundir import RunDir
from tests.launch.conftest import Bench

pytestmark = pytest.mark.processes


def refuses(bench: Bench, *arguments: str, status: int = 2) -> str:
    """The one line of a launch of steps.py that ends with `status`."""
    launched = bench.launch(*arguments, "steps.py", "2")
    assert launched.wait() == status, launched.printed
    assert "Traceback" not in launched.printed
    lines = [line for line in launched.printed.splitlines() if "see harness run --help" not in line]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("bent", "line"),
    [
        (
            lambda run: run.event_file("launcher-0"),
            "launcher-0.jsonl cannot be written: Is a director",
        ),
        (lambda run: run.settings, "/run cannot be used: Is a directory"),
        (lambda run: run.launcher_log, "launcher.log cannot be written: Is a directory"),
    ],
)
def test_a_folder_in_the_place_of_a_file_is_named(
    bench: Bench, bent: Callable[[RunDir], Path], line: str
):
    bent(bench.run_dir).mkdir(parents=True)
    assert line in refuses(bench)


@pytest.mark.parametrize("name", ["events", "workers", "slots", "logs", "cache"])
def test_a_file_in_the_place_of_a_folder_is_named(bench: Bench, name: str):
    bench.run_dir.path.mkdir()
    (bench.run_dir.path / name).write_text("")
    said = refuses(bench)
    assert "is not empty and holds no run: name another --run" in said


def test_a_file_in_the_place_of_the_checkpoints_is_named(bench: Bench):
    bench.write("ck", "")
    assert "/ck cannot be written: " in refuses(bench, "--checkpoints", "ck")


def test_a_loop_of_links_is_named(bench: Bench):
    (bench.folder / "run").symlink_to("run")
    assert "cannot be used: Too many levels of symbolic links" in refuses(bench)


def test_a_tape_for_more_ranks_is_refused(bench: Bench):
    header = {"schema": 1, "seed": 1, "plan": "x", "world_size": 4, "faults": 1}
    fault = {"id": "f1", "at_s": 1.0, "kind": "kill", "target": "rank 3"}
    bench.write("tape.jsonl", f"{json.dumps(header)}\n{json.dumps(fault)}\n")
    said = refuses(bench, "--tape", "tape.jsonl")
    assert "tape.jsonl: rank 3 does not exist at 1 ranks, and the tape is for 4" in said
    assert not bench.run_dir.settings.exists()


@pytest.mark.parametrize("name", ["exporter.json", "cache/fold.msgpack"])
def test_training_goes_on_without_what_is_only_shown(bench: Bench, name: str):
    (bench.run_dir.path / name).mkdir(parents=True)
    assert refuses(bench, status=0) == ""


def test_a_port_that_is_taken_costs_the_port_and_the_real_one_is_written_down(bench: Bench, zygote):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = ["--run", "run", "--metrics-port", port, "--quiet", "--nproc-per-node", "1"]
        script = bench.write("train.py", WAITS)
        launched = zygote.launch(["run", *map(str, flags), script], bench.folder)
        assert launched.wait() == 0, launched.printed
    target = bench.printed().strip()
    assert target.startswith("127.0.0.1:")
    assert target != f"127.0.0.1:{port}"
    assert f"port {port} is taken; metrics are served on port" in (
        bench.run_dir.launcher_log.read_text()
    )


WAITS = """
import json, os, time
from pathlib import Path

place = Path(os.environ["HARNESS_RUN_DIR"]) / "exporter.json"
deadline = time.monotonic() + 60
while not place.exists() and time.monotonic() < deadline:
    time.sleep(0.02)
print(json.loads(place.read_text())[0]["targets"][0])
"""


def test_a_script_that_dies_before_it_joins_is_tried_once_more_and_its_reason_is_said(
    bench: Bench,
):
    script = bench.write("dies.py", "raise LookupError('no such data')")
    launched = bench.launch(script)
    assert launched.wait() == 1
    assert "rank 0 LookupError: no such data; it cannot start: 2 attempts" in launched.printed
    assert bench.attempts() == [1, 2]
