"""The example with compressed gradients: another method, as exact as the plain one, and compared with it."""

import pytest

from harness.cli import main
from harness.verify import Judgement, verify

pytestmark = pytest.mark.processes
BF16 = ("--compress", "bf16")


def test_a_killed_run_with_compressed_gradients_ends_as_the_one_that_was_not(job, twin, capsys):
    untouched = job.beside("untouched")
    assert untouched.run(2, script=BF16) == 0
    assert job.run(2, script=BF16, KILL="1:1:19") == 0
    verdict = verify(job.path, untouched.path)
    assert verdict.judgement is Judgement.EXACT, verdict.detail

    plain = verify(job.path, twin(2))
    assert plain.judgement is Judgement.DIFFERENT, plain.detail
    assert main(["target", str(twin(2)), str(job.path), "--loss", "9,0"]) == 0
    out = capsys.readouterr().out
    assert "0..10" in out
    assert f"{job.path} / {twin(2)}: steps × 1.00, tokens × 1.00" in out
    assert "not reached" in out


def test_a_run_cannot_go_on_with_another_hook(job, capfd):
    assert job.run(2, "--max-restarts", "0", script=BF16, KILL="1:0:11") == 1
    assert job.run(2, "--max-restarts", "0") == 1
    errors = "".join(path.read_text() for path in job.path.glob("logs/attempt-*/rank-*.err"))
    assert "comm_hooks" in errors
