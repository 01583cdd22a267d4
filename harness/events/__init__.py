"""What can happen in a run: one frozen value per event, by who writes it, and the entry that carries it.

An event says what *changed*, at one instant. Trainer, launcher, injector and simulator all write
these and nothing else; every counter, report and verdict is a fold over them (`timeline.py`).
This package is the one door: nobody imports from the modules behind it.
"""

from harness.events.entry import SCHEMA, Entry, Event, Header, Unknown, event_types, rank_of
from harness.events.injector import (
    FaultConfirmed,
    FaultDeferred,
    FaultInjected,
    FaultLifted,
    FaultSkipped,
)
from harness.events.job import (
    ArithmeticKnown,
    CheckpointRejected,
    EvaluationFinished,
    EvaluationStarted,
    GradientsAudited,
    GroupFormed,
    HealthObserved,
    IntervalChosen,
    LossSpiked,
    ReplicasCompared,
    RestoreStarted,
    SaveStarted,
    SaveUnblocked,
    StateFound,
    StepFinished,
    TrainingFinished,
    TrainingResumed,
)
from harness.events.launcher import (
    AttemptStarted,
    DrainRequested,
    FailureDetected,
    HelperRestarted,
    RanksSpawned,
    RanksStopped,
    RunFinished,
    RunStarted,
    StacksDumped,
)
from harness.events.rank import NonfiniteFound, RankJoined, StateDigested, StepTimed
from harness.events.saver import CheckpointDeleted, SaveCommitted, SaveFailed
from harness.events.words import EXIT_CODES, Cause, Outcome, Place, Reaction, Rejection, Tier

__all__ = [
    "EXIT_CODES",
    "SCHEMA",
    "ArithmeticKnown",
    "AttemptStarted",
    "Cause",
    "CheckpointDeleted",
    "CheckpointRejected",
    "DrainRequested",
    "Entry",
    "EvaluationFinished",
    "EvaluationStarted",
    "Event",
    "FailureDetected",
    "FaultConfirmed",
    "FaultDeferred",
    "FaultInjected",
    "FaultLifted",
    "FaultSkipped",
    "GradientsAudited",
    "GroupFormed",
    "Header",
    "HealthObserved",
    "HelperRestarted",
    "IntervalChosen",
    "LossSpiked",
    "NonfiniteFound",
    "Outcome",
    "Place",
    "RankJoined",
    "RanksSpawned",
    "RanksStopped",
    "Reaction",
    "Rejection",
    "ReplicasCompared",
    "RestoreStarted",
    "RunFinished",
    "RunStarted",
    "SaveCommitted",
    "SaveFailed",
    "SaveStarted",
    "SaveUnblocked",
    "StacksDumped",
    "StateDigested",
    "StateFound",
    "StepFinished",
    "StepTimed",
    "Tier",
    "TrainingFinished",
    "TrainingResumed",
    "Unknown",
    "event_types",
    "rank_of",
]
