import json
import os
import subprocess
import sys

import pytest

from harness.beginning import start_ticks
from harness.recorder import boot_id
from harness.rundir import RunDir
from harness.session import first_of_launch, resume_from


@pytest.fixture
def run_dir(tmp_path):
    """A run in which rank 0 of an earlier attempt was this very process."""
    here = RunDir.at(tmp_path)
    here.create()
    said = {"boot_id": boot_id(), "start_ticks": start_ticks(os.getpid())}
    said["first_attempt"] = 3
    here.worker(0).write_text(json.dumps(said))
    return here


def test_a_restart_by_the_launcher_of_the_earlier_attempt_begins_no_launch(run_dir):
    assert first_of_launch(run_dir, os.getppid(), 5) == 3


def test_a_launcher_that_is_younger_than_the_earlier_attempt_begins_one(run_dir):
    younger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert first_of_launch(run_dir, younger.pid, 5) == 5
    younger.communicate()


@pytest.mark.parametrize("said", [None, "", "[]", "{}", '{"boot_id": "another", "start_ticks": 1}'])
def test_where_nobody_of_this_boot_enrolled_a_launch_begins(run_dir, said):
    run_dir.worker(0).unlink()
    if said is not None:
        run_dir.worker(0).write_text(said)
    assert first_of_launch(run_dir, os.getppid(), 5) == 5


@pytest.mark.parametrize(
    ("attempt", "first_attempt", "chosen", "means"),
    [
        (7, 7, [5], "fresh"),  # what an earlier launch chose is no matter
        (9, 7, [5, 7], "auto"),  # 8 was refused, or its number got lost: 7 has chosen all the same
        (9, 7, [5], "fresh"),  # 7 and 8 ended before they could choose
        (6, 6, [5], "fresh"),  # torchrun's second start, whose first had not come to a number
    ],
)
def test_what_is_asked_of_a_launch_holds_until_one_of_its_attempts_has_chosen(
    attempt, first_attempt, chosen, means
):
    assert resume_from("fresh", chosen, attempt, first_attempt) == means
