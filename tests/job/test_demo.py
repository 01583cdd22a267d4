"""The command that a newcomer types first, at the size of a test."""

import subprocess
import sys

import pytest

from tests.zygote import ROOT

pytestmark = pytest.mark.processes


@pytest.mark.timeout(600)
def test_the_demo_breaks_a_job_brings_it_back_and_proves_it(tmp_path):
    command = [sys.executable, "examples/demo.py", "--preset", "tiny", "--steps", "400"]
    done = subprocess.run(
        [*command, "--into", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exact: equal in every component" in done.stdout
    assert "the same state in the end, bit for bit" in done.stdout
    assert "states sum to the wall time" in done.stdout
    assert "states restored from: memory" in done.stdout
