"""What only a GPU can show: kills, exact restarts with NCCL, copies by a stream of their own."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from launch.acceptance.bench import Bench
from launch.acceptance.checks import CHECKS
from launch.acceptance.command import checked, run_harness

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.processes,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_job_on_gpus_is_killed_and_ends_in_the_state_of_its_twin(ranks: int, tmp_path: Path):
    if ranks > torch.cuda.device_count():
        pytest.skip(f"needs {ranks} CUDA devices")
    names: Sequence[str] = [name for name in CHECKS if name != "overhead"]
    report = checked(Bench("cuda", ranks, tmp_path, run_harness, 600.0), names, [])
    told = {one["check"]: one["outcome"] for one in report["checks"]}
    assert told == dict.fromkeys(names, "pass"), report
