import subprocess
import sys

import pytest

from harness.points import Point
from tests.harness.checkpoint.crash import POINTS
from tests.harness.checkpoint.world import Run


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    root = tmp_path_factory.mktemp("crashed")
    command = [sys.executable, "-m", "tests.harness.checkpoint.crash", str(root)]
    subprocess.run(command, check=True, timeout=120)
    return root


@pytest.mark.processes
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_of_a_save_the_newest_commit_is_resumed_from(crashed, point):
    run = Run(crashed / point)
    committed = [10, 20] if point is Point.RETENTION else [10]

    assert run.steps() == committed
    assert [found.step for found in run.choose(world_size=1)] == committed[-1:]
    # The next attempt has taken away what was left half written.
    assert [place.step for place in run.store().places()] == committed
