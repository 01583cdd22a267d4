import json
import os
import subprocess
import sys

import pytest

from harness.beginning import start_ticks
from harness.enrolment import is_first_of_launch
from harness.recorder import boot_id
from harness.rundir import RunDir


@pytest.fixture
def run_dir(tmp_path):
    """A run in which rank 0 of an earlier attempt was this very process."""
    here = RunDir.at(tmp_path)
    here.create()
    said = {"boot_id": boot_id(), "start_ticks": start_ticks(os.getpid())}
    here.worker(0).write_text(json.dumps(said))
    return here


def test_a_restart_by_the_launcher_of_the_earlier_attempt_begins_no_launch(run_dir):
    assert not is_first_of_launch(run_dir, os.getppid())


def test_a_launcher_that_is_younger_than_the_earlier_attempt_begins_one(run_dir):
    younger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_first_of_launch(run_dir, younger.pid)
    younger.communicate()


@pytest.mark.parametrize("said", [None, "", "[]", "{}", '{"boot_id": "another", "start_ticks": 1}'])
def test_where_nobody_of_this_boot_enrolled_a_launch_begins(run_dir, said):
    run_dir.worker(0).unlink()
    if said is not None:
        run_dir.worker(0).write_text(said)
    assert is_first_of_launch(run_dir, os.getppid())
