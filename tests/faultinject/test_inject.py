"""The injector as a process of its own, over real processes that registered themselves as ranks."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faultinject import tapefile
from faultinject.inject import Bell, Injector
from faultinject.tape import Fault, Rank, Tape
from harness import journal, settings
from harness.events import (
    AttemptStarted,
    Cause,
    Event,
    FailureDetected,
    FaultConfirmed,
    FaultDeferred,
    FaultInjected,
    FaultSkipped,
    Outcome,
    RunFinished,
    RunStarted,
    SaveCommitted,
    Tier,
    TrainingFinished,
)
from harness.recorder import Recorder
from harness.rundir import RunDir
from tests.faultinject.conftest import PATIENCE_S, RankProcess, Ranks, record

FOUR = tuple(
    Fault(f"f{number}", at_s, "kill", Rank(rank))
    for number, at_s, rank in [(1, 0.0, 1), (2, 0.01, 0), (3, 0.02, 1), (4, 3600.0, 0)]
)
COMMAND = [sys.executable, "-m", "faultinject", "inject", "--run"]


class Injecting:
    """An injector at work on a run, until the test ends."""

    def __init__(self, run_dir: RunDir, *flags: str) -> None:
        self.run_dir = run_dir
        self.process = subprocess.Popen(
            [*COMMAND, run_dir.path, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ends(self) -> tuple[int, list[str]]:
        """Wait for its end: exit status, and all lines that it printed."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, [*out.splitlines(), *err.splitlines()]

    def says(self, start: str) -> str:
        """The next line that begins so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(f"faults: {start}"):
                return line
        raise AssertionError(f"the injector left without saying {start!r}")


Inject = Callable[..., Injecting]


@pytest.fixture
def inject(run_dir: RunDir) -> Iterator[Inject]:
    started: list[Injecting] = []

    def start(*flags: str) -> Injecting:
        started.append(Injecting(run_dir, *flags))
        return started[-1]

    yield start
    for injecting in started:
        injecting.process.kill()
        injecting.process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def launcher(run_dir: RunDir) -> Iterator[Recorder]:
    """What a launcher writes, by the test."""
    with Recorder(run_dir, "run", "launcher-0") as recorder:
        recorder.write(RunStarted("run", 2))
        yield recorder


def arm(run_dir: RunDir, *faults: Fault) -> None:
    record(run_dir, armed=True)
    tapefile.write(run_dir.tape, Tape(0, "plan", 2, faults))


def attempt(number: int, launcher: Recorder, start_rank: Ranks) -> tuple[RankProcess, RankProcess]:
    """Both ranks of a new attempt, registered; neither has made a step."""
    launcher.attempt = number
    launcher.write(AttemptStarted(2))
    zero, one = start_rank(0, number), start_rank(1, number)
    return zero.ready(), one.ready()


def told(run_dir: RunDir, *kinds: type[Event]) -> list[tuple[int, Event]]:
    """What injectors wrote of these kinds: attempt and event."""
    return [
        (entry.attempt, entry.event)
        for entry in journal.read(run_dir)
        if entry.writer == "injector" and isinstance(entry.event, kinds or Event)
    ]


def test_faults_strike_one_to_an_attempt_over_the_injectors_own_death_and_are_accounted(
    run_dir: RunDir, launcher: Recorder, start_rank: Ranks, inject: Inject
):
    arm(run_dir, *FOUR)
    first = inject()
    first.says("no save has been committed yet")
    zero, one = attempt(1, launcher, start_rank)
    zero.tell("step 1")
    zero.tell("save 1")

    assert one.end() == -signal.SIGKILL
    first.says("f2 waits for rank 0: attempt 1 was hit by f1")
    first.process.kill()
    assert zero.lives()
    launcher.write(FailureDetected(1, Cause.SIGNAL, "killed"))
    zero.kill()

    second = inject()
    zero, one = attempt(2, launcher, start_rank)
    zero.tell("step 2")
    assert zero.end() == -signal.SIGKILL
    second.says("f3 waits for rank 1")
    one.kill()

    zero, one = attempt(3, launcher, start_rank)
    zero.tell("step 2")
    assert one.end() == -signal.SIGKILL
    second.says("f3 confirmed")
    assert zero.lives()
    launcher.write(RunFinished(Outcome.FINISHED))

    status, lines = second.ends()
    assert (status, lines[-2:]) == (
        0,
        [
            "faults: every fault of the tape is accounted for",
            "faults: 4 planned = 3 applied + 1 skipped + 0 still to come; 2 had to wait for their target",
        ],
    )
    assert told(run_dir, FaultInjected) == [
        (1, FaultInjected("f1", "kill", "rank 1")),
        (2, FaultInjected("f2", "kill", "rank 0")),
        (3, FaultInjected("f3", "kill", "rank 1")),
    ]
    assert [type(event) for _, event in told(run_dir)] == [
        *(FaultInjected, FaultConfirmed),
        *(FaultDeferred, FaultInjected, FaultConfirmed),
        *(FaultDeferred, FaultInjected, FaultConfirmed),
        FaultSkipped,
    ]


def test_a_fault_waits_for_its_instant_and_hits_its_target_alone(
    run_dir: RunDir, launcher: Recorder, start_rank: Ranks, inject: Inject
):
    arm(run_dir, Fault("f1", 0.5, "kill", Rank(1)))
    zero, one = attempt(1, launcher, start_rank)
    zero.tell("step 1")
    zero.tell("save 1")

    assert inject().ends()[0] == 0

    assert one.end() == -signal.SIGKILL
    assert zero.lives()
    at_ns = {type(entry.event).__name__: entry.at_ns for entry in journal.read(run_dir)}
    assert 0.5e9 <= at_ns["FaultInjected"] - at_ns["SaveCommitted"] < 10e9
    assert told(run_dir, FaultConfirmed) == [
        (1, FaultConfirmed("f1", f"process {one.pid} is dead"))
    ]


def test_a_fault_that_was_logged_and_did_not_act_is_done_by_the_next_injector(
    run_dir: RunDir, launcher: Recorder, start_rank: Ranks, inject: Inject
):
    arm(run_dir, FOUR[0])
    zero, one = attempt(1, launcher, start_rank)
    zero.tell("step 1")
    zero.tell("save 1")
    with Recorder(run_dir, "run", "injector", attempt=1) as dead_injector:
        dead_injector.write(FaultInjected("f1", "kill", "rank 1"))

    assert inject().ends()[0] == 0

    assert one.end() == -signal.SIGKILL
    assert told(run_dir) == [
        (1, FaultInjected("f1", "kill", "rank 1")),
        (1, FaultConfirmed("f1", f"process {one.pid} is dead")),
    ]


def test_a_fault_that_acted_before_its_injector_died_is_not_repeated_on_the_next_attempt(
    run_dir: RunDir, launcher: Recorder, start_rank: Ranks, inject: Inject
):
    arm(run_dir, FOUR[0])
    with Recorder(run_dir, "run", "injector", attempt=1) as dead_injector:
        dead_injector.write(FaultInjected("f1", "kill", "rank 1"))
    zero, one = attempt(2, launcher, start_rank)
    zero.tell("step 1")
    zero.tell("save 1")

    assert inject().ends()[0] == 0

    assert one.lives()
    reason = "rank 1 registered in attempt 2, and now is 1"
    assert told(run_dir, FaultConfirmed) == [
        (1, FaultConfirmed("f1", f"seen by a later injector: {reason}"))
    ]


def test_a_target_that_steps_and_is_not_what_was_registered_is_not_hit(
    run_dir: RunDir, launcher: Recorder, start_rank: Ranks, inject: Inject
):
    arm(run_dir, FOUR[0])
    zero, one = attempt(1, launcher, start_rank)
    run_dir.worker(1).write_text(run_dir.worker(0).read_text().replace('"rank": 0', '"rank": 1'))
    run_dir.worker(1).write_text(
        run_dir.worker(1).read_text().replace("rank-0.jsonl", "rank-1.jsonl")
    )
    zero.tell("step 1")
    zero.tell("save 1")

    injecting = inject()
    injecting.says("f1 waits for rank 1: process")
    launcher.write(RunFinished(Outcome.FINISHED))

    assert injecting.ends()[0] == 0
    assert zero.lives()
    assert one.lives()
    assert [type(event) for _, event in told(run_dir)] == [FaultDeferred, FaultSkipped]


def test_a_drained_run_keeps_its_faults_for_when_it_goes_on(
    run_dir: RunDir, launcher: Recorder, inject: Inject
):
    arm(run_dir, *FOUR)
    injecting = inject()
    injecting.says("no save")
    launcher.write(RunFinished(Outcome.DRAINED))

    status, lines = injecting.ends()

    assert (status, lines) == (
        0,
        [
            "faults: the run was drained; what is left waits for it to go on",
            "faults: 4 planned = 0 applied + 0 skipped + 4 still to come; 0 had to wait for their target",
        ],
    )
    assert told(run_dir) == []


def test_asked_to_leave_after_the_last_save_it_accounts_for_all_first(
    run_dir: RunDir, launcher: Recorder, inject: Inject
):
    arm(run_dir, *FOUR)
    injecting = inject()
    injecting.says("no save")
    injecting.process.send_signal(signal.SIGSTOP)
    with Recorder(run_dir, "run", "rank-0", 1) as rank:
        rank.write(TrainingFinished(9))
        rank.write(SaveCommitted(9, Tier.STORAGE, 1))
    injecting.process.send_signal(signal.SIGTERM)
    injecting.process.send_signal(signal.SIGCONT)

    status, _ = injecting.ends()

    assert status == 0
    reason = "the run finished first"
    assert [event for _, event in told(run_dir)] == [
        FaultSkipped(fault.id, reason) for fault in FOUR
    ]


def test_a_run_that_finishes_while_it_is_asked_to_leave_is_accounted_for(
    run_dir: RunDir, launcher: Recorder
):
    arm(run_dir, *FOUR)

    def finish_and_ring(line: str) -> None:
        if line == "no save has been committed yet":  # said after the log was read
            launcher.write(RunFinished(Outcome.FINISHED))
            bell.rung = signal.SIGTERM

    with Bell(()) as bell, Recorder(run_dir, "run", "injector") as recorder:
        injector = Injector(run_dir, tapefile.read(run_dir.tape), recorder, finish_and_ring)
        assert injector.run(bell) == "every fault of the tape is accounted for"

    assert len(told(run_dir, FaultSkipped)) == 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_leave_it_leaves_the_rest_to_the_next_one(
    run_dir: RunDir, launcher: Recorder, inject: Inject, number: signal.Signals
):
    arm(run_dir, *FOUR)
    injecting = inject()
    injecting.says("no save")

    injecting.process.send_signal(number)

    status, lines = injecting.ends()
    assert (status, lines[0]) == (0, f"faults: asked to leave by {number.name}")
    assert told(run_dir) == []


def test_a_run_that_is_not_armed_is_left_alone(run_dir: RunDir, launcher: Recorder, inject: Inject):
    record(run_dir, armed=False)
    tapefile.write(run_dir.tape, Tape(0, "plan", 2, FOUR))

    status, lines = inject().ends()

    assert status == 1
    assert f"{run_dir.path} is not armed" in lines[0]
    assert not list(run_dir.events.glob("injector*"))


def test_giving_a_tape_arms_the_run_and_the_run_keeps_it(
    run_dir: RunDir, launcher: Recorder, inject: Inject, tmp_path: Path
):
    record(run_dir, armed=False)
    launcher.write(RunFinished(Outcome.FINISHED))
    tape, other = tmp_path / "tape.jsonl", tmp_path / "other.jsonl"
    tapefile.write(tape, Tape(0, "plan", 2, FOUR))
    tapefile.write(other, Tape(1, "plan", 2, FOUR))

    assert inject("--tape", str(tape)).ends()[0] == 0
    kept = settings.read(run_dir.settings)
    assert kept is not None
    assert kept.armed
    assert tapefile.read(run_dir.tape) == tapefile.read(tape)
    assert inject("--tape", str(tape)).ends()[0] == 0
    status, lines = inject("--tape", str(other)).ends()
    assert status == 1
    assert "has another tape already" in lines[0]
    assert len(told(run_dir, FaultSkipped)) == 4


def test_a_run_has_one_injector(run_dir: RunDir, launcher: Recorder, inject: Inject):
    arm(run_dir, *FOUR)
    inject().says("no save")

    status, lines = inject().ends()

    assert status == 1
    assert "another injector is at work" in lines[0]


def test_it_waits_for_a_run_to_begin_and_not_for_ever(
    run_dir: RunDir, launcher: Recorder, inject: Inject, tmp_path: Path
):
    tape = tmp_path / "tape.jsonl"
    tapefile.write(tape, Tape(0, "plan", 2, FOUR))
    waiting = inject("--tape", str(tape))
    waiting.says("waiting up to 600 s for a run to begin")

    assert inject("--wait-s", "0").ends()[0] == 1
    record(run_dir, armed=False)
    waiting.says("no save")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id":"f1","at_s":1,"kind":"nope","target":"rank 0"}', "unknown fault kind 'nope'"),
        ("garbage", "tape.jsonl: line 2: not JSON"),
    ],
)
def test_a_tape_that_cannot_be_used_is_refused(run_dir: RunDir, inject: Inject, line, message):
    arm(run_dir, FOUR[0])
    header = run_dir.tape.read_text().splitlines()[0]
    run_dir.tape.write_text(f"{header}\n{line}\n")

    status, lines = inject().ends()

    assert status == 2
    assert message in lines[0]
    assert len(lines) == 1


STARTS_AN_INJECTOR = """
import subprocess, sys
injector = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
print(injector.pid, injector.stdout.readline(), flush=True)
sys.stdin.read()
"""


def test_it_dies_with_the_launcher_that_started_it(run_dir: RunDir, launcher: Recorder):
    arm(run_dir, *FOUR)
    command = [sys.executable, "-c", STARTS_AN_INJECTOR, *COMMAND, str(run_dir.path)]
    with subprocess.Popen(
        [*command, "--with-parent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline().split()[0])
        descriptor = os.pidfd_open(pid)
        parent.kill()

    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    died = bool(poll.poll(5000))
    if not died:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    os.close(descriptor)
    assert died, "the injector outlived its launcher"


def test_the_faults_that_an_ended_life_left_come_in_the_next_one(
    run_dir: RunDir, launcher: Recorder, start_rank: Ranks, inject: Inject
):
    arm(run_dir, FOUR[0])
    launcher.write(RunFinished(Outcome.FAILED))
    launcher.write(RunStarted("run", 2))

    injecting = inject("--with-parent")
    zero, one = attempt(1, launcher, start_rank)
    zero.tell("step 1")
    zero.tell("save 1")

    assert injecting.ends()[0] == 0
    assert one.end() == -signal.SIGKILL
