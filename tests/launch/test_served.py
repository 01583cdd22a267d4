"""Where a run is served, as Prometheus finds it: for how long that stays written down."""

import json

import pytest

from harness.events import Outcome, RunFinished
from launch import served
from tests.launch.conftest import Bench

SERVED = ("run", "--run", "run", "--nproc-per-node", "1", "--metrics-port", "0", "--quiet")

ENDS = """
import pathlib, sys, time
while not pathlib.Path("run/exporter.json").exists():
    time.sleep(0.05)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.processes
def test_a_run_that_failed_leaves_its_address_so_that_somebody_is_called(bench: Bench):
    script = bench.write("ends.py", ENDS)
    failed = bench.zygote.launch([*SERVED, "--max-restarts", "0", script, "1"], bench.folder)
    assert failed.wait() == 1, failed.printed
    (group,) = json.loads(bench.run_dir.exporter.read_text())
    assert group["labels"]["__param_run_dir"] == str(bench.run_dir.path)

    again = bench.zygote.launch([*SERVED, script, "0"], bench.folder)
    assert again.wait() == 0, again.printed
    assert served.place(bench.run_dir) is None
    outcomes = [event.outcome for event in bench.events(RunFinished)]
    assert outcomes == [Outcome.FAILED, Outcome.FINISHED]
