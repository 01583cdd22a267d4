"""Runs made by hand: who wrote what when, and the event files that hold it."""

from collections.abc import Sequence
from pathlib import Path

from harness import slots
from harness.events import (
    SCHEMA,
    AttemptStarted,
    Cause,
    CheckpointRejected,
    Entry,
    EvaluationFinished,
    EvaluationStarted,
    Event,
    FailureDetected,
    FaultConfirmed,
    FaultDeferred,
    FaultInjected,
    FaultSkipped,
    GroupFormed,
    Header,
    Outcome,
    RankJoined,
    RanksSpawned,
    RanksStopped,
    Rejection,
    RestoreStarted,
    RunFinished,
    RunStarted,
    SaveCommitted,
    SaveFailed,
    SaveStarted,
    SaveUnblocked,
    StacksDumped,
    StateDigested,
    StateFound,
    StepFinished,
    Tier,
    TrainingFinished,
    TrainingResumed,
)
from harness.journal import encode
from harness.rundir import RunDir
from harness.slots import Slot

MS = 1_000_000
START_MS = 1_700_000_000_000
"""Unix time of the first entry of every story."""
ELSEWHERE = "a boot of another machine"

Line = tuple[int, str, int, Event]
"""Milliseconds since the start, writer, attempt, event."""
Story = Sequence[Line]

L, R0, R1, S, I = "launcher-0", "rank-0", "rank-1", "rank-0", "injector"  # noqa: E741 - one letter a column

KILLED_ONCE: Story = (
    (0, L, -1, RunStarted("r1", 2)),
    (10, L, 0, AttemptStarted(2)),
    (100, L, 0, RanksSpawned(2, warm=True)),
    (190, R0, 0, RankJoined(70, 7000)),
    (195, R1, 0, RankJoined(71, 7001)),
    (200, R0, 0, RestoreStarted()),
    (300, R0, 0, TrainingResumed(0, None, total_steps=10)),
    (350, R0, 0, GroupFormed(2)),
    (500, R0, 0, StepFinished(1, 0, 8, "a1", tokens=100, loss=5.5, loss_step=1)),
    (1000, R0, 0, StepFinished(2, 8, 16, "a2", tokens=100, loss=5.0, loss_step=2)),
    (1000, R0, 0, SaveStarted(2, Tier.STORAGE)),
    (1040, R0, 0, SaveUnblocked(2, Tier.STORAGE)),
    (1200, S, 0, SaveCommitted(2, Tier.STORAGE, 4_000_000)),
    (1540, R0, 0, StepFinished(3, 16, 24, "a3", tokens=100, loss=4.5, loss_step=3)),
    (1540, R0, 0, EvaluationStarted(3)),
    (1640, R0, 0, EvaluationFinished(3, 4.75)),
    (1700, I, 0, FaultInjected("1", "kill", "rank 1")),
    (1705, I, 0, FaultConfirmed("1", "process 71 is gone")),
    (1740, L, 0, FailureDetected(1, Cause.SIGNAL, "killed by SIGKILL")),
    (1745, L, 0, StacksDumped("incidents/0")),
    (1760, L, 0, RanksStopped()),
    (1780, L, 1, AttemptStarted(2)),
    (1800, L, 1, RanksSpawned(2, warm=True)),
    (1850, R0, 1, RankJoined(80, 8000)),
    (1850, R1, 1, RankJoined(81, 8001)),
    (1860, R0, 1, RestoreStarted()),
    (1875, R0, 1, StateFound(2, Tier.STORAGE)),
    (1880, R0, 1, GroupFormed(2)),
    (1900, R0, 1, TrainingResumed(2, Tier.STORAGE, 0, total_steps=10)),
    (2000, R0, 1, StepFinished(3, 16, 24, "a3", tokens=100, loss=4.5, loss_step=3)),
    (2400, R0, 1, StepFinished(4, 24, 32, "a4", tokens=100, loss=4.0, loss_step=4)),
    (2400, R0, 1, EvaluationStarted(4)),
    (2500, R0, 1, EvaluationFinished(4, 3.5)),
    (2510, R0, 1, SaveStarted(4, Tier.STORAGE)),
    (2560, R0, 1, SaveUnblocked(4, Tier.STORAGE)),
    (2600, R0, 1, TrainingFinished(4)),
    (2610, R0, 1, StateDigested(4, {"model": "m", "optimizer": "o"})),
    (2610, R1, 1, StateDigested(4, {"model": "m", "optimizer": "p"})),
    (2700, S, 1, SaveCommitted(4, Tier.STORAGE, 4_000_000)),
    (2750, I, 1, FaultSkipped("2", "the run has ended")),
    (2800, L, 1, RunFinished(Outcome.FINISHED)),
)
"""Four steps on two ranks; rank 1 is killed in step 4, and the run goes back to step 2."""

GOING: Story = tuple(line for line in KILLED_ONCE if line[0] < 2560)
"""The same run while its last save copies."""

TROUBLED: Story = (
    *(line for line in KILLED_ONCE if line[0] < 1640),
    (1600, I, 0, FaultDeferred("1", "its target is down")),
    (1700, S, 0, SaveFailed(3, Tier.STORAGE, "no space left")),
    (1740, L, 0, FailureDetected(0, Cause.EXCEPTION, "ValueError: no")),
    (1760, L, 0, RanksStopped()),
    (1780, L, 1, AttemptStarted(2)),
    (1860, R0, 1, RestoreStarted()),
    (1880, R0, 1, CheckpointRejected(2, 0, Rejection.CHECKSUM, "shard 0 differs")),
    (1890, L, 1, FailureDetected(None, Cause.EXIT, "exit status 3")),
    (1900, L, 1, RunFinished(Outcome.FAILED, "2 failures within 5 min")),
)
"""A run that fails of itself, loses its only checkpoint and is given up."""


def entries(story: Story) -> list[Entry]:
    """The story as a reader of the log gets it."""
    sequences: dict[str, int] = {}
    told = []
    for ms, writer, attempt, event in sorted(story, key=lambda line: line[0]):
        sequence = sequences[writer] = sequences.get(writer, -1) + 1
        told.append(Entry((START_MS + ms) * MS, attempt, sequence, event, writer))
    return told


def write(path: Path, story: Story) -> RunDir:
    """A run directory at `path` with the story's event files."""
    run_dir = RunDir.at(path)
    run_dir.create()
    add(run_dir, story)
    return run_dir


def add(run_dir: RunDir, story: Story) -> None:
    """The story goes on in the files that are there."""
    for entry in entries(story):
        file = run_dir.event_file(entry.writer)
        if not file.exists():
            file.write_bytes(encode(_header(entry.writer)))
        with file.open("ab") as out:
            out.write(encode(entry))


def slot(path: Path) -> Slot:
    """What the slot says; there has to be one."""
    found = slots.read(path)
    assert found is not None
    return found


def _header(writer: str) -> Header:
    return Header(SCHEMA, "r1", writer, "here", ELSEWHERE, 1, START_MS * MS, START_MS * MS)
