"""A number is claimed in a thread of its own, which may be left alone with it."""

import os
import select
import signal
import threading
from pathlib import Path
from threading import Event

import pytest

from harness.checkpoint.patience import may_pass
from harness.checkpoint.store import Store
from harness.events import FaultInjected, Outcome, RunFinished
from launch.claim import Claim
from tests.launch.conftest import Bench
from tests.waiting import until


def test_a_claim_gives_its_number_once_it_is_over():
    go = Event()
    claim = Claim(lambda: 7 if go.wait() else 0)
    assert not claim.is_over
    assert select.select([claim], [], [], 0.0)[0] == []
    go.set()
    assert select.select([claim], [], [], 60.0)[0] == [claim]
    assert claim.is_over
    assert claim.number() == 7
    claim.leave()


def test_what_a_claim_met_is_raised_where_its_number_is_asked_for():
    def refused() -> int:
        raise PermissionError("no")

    claim = Claim(refused)
    assert select.select([claim], [], [], 60.0)[0] == [claim]
    with pytest.raises(PermissionError, match="no"):
        claim.number()
    claim.leave()


def test_a_claim_that_is_left_alone_takes_a_number_of_its_own_and_no_descriptor_of_others(
    tmp_path: Path,
):
    store, go = Store.open(str(tmp_path), "run"), Event()
    claim = Claim(lambda: store.claim_attempt() if go.wait() else 0)
    claim.leave()
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
    go.set()
    until(lambda: store.newest_attempt() == 1, "its claim")
    until(lambda: claim.is_over, "its end")
    claim._thread.join()
    assert store.claim_attempt() == 2
    for descriptor in others:
        os.close(descriptor)


HANGS = """
schema = 1
seed = 1
[[storage]]
kind = "hang"
operations = ["list"]
name = "attempts"
nth = 3
"""
"""Each claim lists twice: it is the second one that hangs."""
FAILS_ONCE = """\
import os
if os.environ["HARNESS_ATTEMPT"] == "1":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "status", "ending"),
    [
        (signal.SIGINT, 130, RunFinished(Outcome.INTERRUPTED)),
        (
            signal.SIGTERM,
            75,
            RunFinished(Outcome.DRAINED, "no rank was at work: what was committed before stands"),
        ),
    ],
)
def test_a_storage_that_hangs_in_a_restart_s_claim_keeps_nobody_from_ending_the_run(
    bench: Bench, number: signal.Signals, status: int, ending: RunFinished
):
    bench.write("plan.toml", HANGS)
    checkpoints = ("--checkpoints", f"chaos::file://{bench.folder}/kept")
    script = bench.write("s.py", FAILS_ONCE)
    run = bench.launch("--faults", "plan.toml", *checkpoints, script)
    until(lambda: bench.events(FaultInjected), "the storage hangs")
    run.signal(number)
    assert run.wait(20) == status, "the storage has 60 s for an answer"
    assert bench.events(RunFinished) == [ending]
    assert bench.launch(*checkpoints, script).wait() == 0
    assert bench.attempts() == [1, 2]


def test_a_claim_for_which_no_thread_is_left_fails_and_may_be_made_again(monkeypatch):
    def none_left(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    claim = Claim(lambda: 1)
    assert claim.is_over
    assert select.select([claim], [], [], 0)[0] == [claim], "whoever waits for it is woken"
    with pytest.raises(OSError, match="can't start new thread") as failed:
        claim.number()
    assert may_pass(failed.value)
    claim.leave()
