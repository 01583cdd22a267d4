"""The same script under plain `torchrun`, with an injector beside it: what comes out is the same."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from socket import gethostname
from urllib.request import urlopen

import pytest

from faultinject import tape, tapefile
from faultinject.tape import Choice, Instants, Plan, Rank
from harness.events import FaultConfirmed, RankJoined, RunStarted, TrainingResumed
from harness.report import report
from harness.report.model import Standing
from harness.rundir import RunDir
from harness.verify import Judgement, verify
from tests.job.conftest import SCRIPT, STEPS, Job
from tests.prometheus import awaited

pytestmark = pytest.mark.processes

# A store for each attempt: with its usual one torchrun's restarts fail now and then. Rank 0 hosts it.
ENVIRONMENT = {
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "HARNESS_SAVE_EVERY_STEPS": "3",
    "HARNESS_DIGEST_EVERY_STEPS": "1",
    "HARNESS_THREADS": "1",
    "WAIT": "1:1:19",
}


@contextmanager
def torchrun(job, *arguments):
    """`torchrun` on two ranks; it is ended like a user would, so that it ends its ranks."""
    flags = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "3"]
    flags += [
        "--log-dir",
        str(job.folder / "logs"),
    ]  # else torch leaves one in the temporary folder
    with (job.folder / "torchrun.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *flags, str(SCRIPT), *arguments],
            cwd=job.folder,
            env=os.environ | ENVIRONMENT | {"HARNESS_RUN_DIR": str(job.path)},
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@contextmanager
def exported_beside(job: Job) -> Iterator[None]:
    """Whoever exports the run sees that it goes on, and then that it is over."""
    run_dir = RunDir.at(job.path)
    awaited(run_dir.event_file("rank-0").exists, "the first rank")
    exporter = job.zygote.launch(["export", "run", "--port", "0"], job.folder)
    awaited(run_dir.exporter.exists, "the exporter")
    (group,) = json.loads(run_dir.exporter.read_text())
    (target,) = group["targets"]
    awaited(lambda: tells(target, "launcher_up", "") == 1, "a run that is led")
    yield
    assert tells(target, "launcher_up", "") == 0
    assert tells(target, "phase", 'phase="finished"') == 1
    assert tells(target, "step", "") == STEPS
    assert tells(target, "rank_up", 'rank="0"') == 0
    exporter.signal(signal.SIGTERM)
    assert exporter.wait() == 0, exporter.printed


def tells(target: str, name: str, own: str) -> float | None:
    """The value that a scrape gives of the first series of a metric with `own` among its labels."""
    with urlopen(f"http://{target}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    of = [line for line in lines if line.startswith(f"harness_{name}{{") and own in line]
    return float(of[0].rpartition(" ")[2]) if of else None


def test_a_rank_that_an_injector_kills_under_torchrun_comes_back_to_the_same_end(job, twin):
    kill = Plan(Instants((0.0,)), (Choice("kill", target=Rank(1)),), 1)
    tapefile.write(job.folder / "tape.jsonl", tape.compile(kill, 2))
    inject = ["faults", "inject", "--run", "run", "--tape", "tape.jsonl", "--wait-s", "120"]
    script = ("--preset", "tiny", "--steps", str(STEPS), "--data", str(job.text))
    with torchrun(job, *script) as launched:
        injector = job.zygote.launch(inject, job.folder)
        with exported_beside(job):
            assert launched.wait(200) == 0, (job.folder / "torchrun.log").read_text()
        assert injector.wait(20) == 0, injector.printed

    verdict = verify(job.path, twin(2))
    assert (verdict.judgement, verdict.compared_steps) == (Judgement.EXACT, STEPS), verdict.detail
    events = [entry.event for entry in job.entries()]
    assert [event.tool for event in events if isinstance(event, RunStarted)] == ["torchrun"]
    assert any(isinstance(event, FaultConfirmed) for event in events)
    begun, joined = (
        next(entry.at_ns for entry in job.entries() if isinstance(entry.event, kind))
        for kind in (RunStarted, RankJoined)
    )
    assert joined - begun > 1_000_000_000, "the imports of torchrun and its ranks are start-up"
    joined_from = {(e.local_rank, e.node) for e in events if isinstance(e, RankJoined)}
    assert joined_from == {(0, gethostname()), (1, gethostname())}
    first, second = [event.step for event in events if isinstance(event, TrainingResumed)]
    assert first == 0
    assert 0 < second < 19
    told = report(RunDir.at(job.path))
    assert (told.standing, told.attempts, told.restarts) == (Standing.FINISHED, 2, 1)
    assert told.notes == ()
