"""Causes of failures are told apart, by real ranks that fail in each way, one attempt after the other."""

import json

import pytest

from harness.events import Cause, FailureDetected, Outcome, RunFinished
from tests.launch.conftest import Bench

pytestmark = pytest.mark.processes

ALLOCATOR = "RuntimeError: [enforce fail at "
TABLE = [
    ("os.kill(os.getpid(), signal.SIGKILL)", Cause.SIGNAL, "killed by SIGKILL"),
    ("os.kill(os.getpid(), signal.SIGSEGV)", Cause.SIGNAL, "killed by SIGSEGV"),
    ("os._exit(3)", Cause.EXIT, "exit code 3"),
    ("os._exit(0)", Cause.EXIT, "left with exit code 0 before the job was done, after step 7"),
    ("raise ValueError('no such token')", Cause.EXCEPTION, "ValueError: no such token"),
    ("raise MemoryError('2 GiB')", Cause.OOM, "MemoryError: 2 GiB"),
    ("torch.empty(1 << 60)", Cause.OOM, ALLOCATOR),
    ("os.kill(os.getpid(), signal.SIGSTOP)", Cause.HANG, "is stopped: "),
]


def test_each_cause_is_told_with_the_rank_that_failed_and_not_the_peer_that_lost_it(bench: Bench):
    script = bench.write(
        "failing.py",
        "import os, signal, torch\n"
        "import harness\n"
        "job = harness.join(save_every_steps=1)\n"
        "model = job.ddp(torch.nn.Linear(2, 2))\n"
        "job.protect(model=model)\n"
        f"deeds = {[deed for deed, _, _ in TABLE]!r}\n"
        "for step in job.steps(2 * len(deeds) + 1):\n"
        "    if job.rank == 1 and step == 2 * job.attempt:\n"
        "        exec(deeds[job.attempt - 1])\n"
        "    model(torch.ones(1, 2)).sum().backward()\n",
    )
    run = bench.launch("--max-restarts", str(len(TABLE)), script, ranks=2)
    assert run.wait(120) == 0, run.printed
    failures = bench.events(FailureDetected)
    assert [(failure.rank, failure.cause) for failure in failures] == [
        (1, cause) for _, cause, _ in TABLE
    ]
    for failure, (_, _, reason) in zip(failures, TABLE, strict=True):
        assert failure.reason.startswith(reason), failure
    blamed = [json.loads(bench.run_dir.exits(attempt).read_text())["blamed"] for attempt in (1, 8)]
    assert [it["cause"] for it in blamed] == ["signal", "hang"]
    assert bench.events(RunFinished) == [RunFinished(Outcome.FINISHED)]
