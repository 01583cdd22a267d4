"""The phases of a run and the table that moves it between them. What may follow what stands here alone.

A phase lasts until the next event that the table knows for it. Events that no row names (commits,
faults, what a newer writer wrote) change nothing in any phase.
"""

from collections.abc import Mapping
from enum import StrEnum

from harness.events import (
    AttemptStarted,
    DrainRequested,
    EvaluationFinished,
    EvaluationStarted,
    Event,
    FailureDetected,
    RestoreStarted,
    RunFinished,
    RunStarted,
    SaveStarted,
    SaveUnblocked,
    StepFinished,
    TrainingFinished,
    TrainingResumed,
)


class Phase(StrEnum):
    """What the run as a whole is doing."""

    STARTUP = "startup"
    """From a launcher's start until the first attempt looks for a state to resume from."""
    RESTORE = "restore"
    """Finding, verifying and loading a state."""
    WARMUP = "warmup"
    """The first step of an attempt: compilation, autotuning, cold caches."""
    WORK = "work"
    """Training steps."""
    EVALUATION = "evaluation"
    """Scoring held-out data."""
    SAVE_STALL = "save_stall"
    """Training waits while the state is copied."""
    INTERRUPTED = "interrupted"
    """From the last finished step to the detection of a failure; known only in hindsight."""
    RESTART = "restart"
    """From the detection of a failure until the next attempt looks for a state."""
    DRAIN = "drain"
    """The last save and the tear-down, after the last step or on request."""
    DOWN = "down"
    """No launcher lives."""
    FINISHED = "finished"
    """The launcher has left; lasts no time, for what follows is `down` if ever it goes on."""


BACK = None
"""Back to the phase in which the save or the evaluation began."""

_LIVE: Mapping[type[Event], Phase | None] = {
    RunStarted: Phase.STARTUP,  # the former launcher died: `down` since the last entry of any writer
    AttemptStarted: Phase.RESTART,  # nobody had declared the failure: plain torchrun
    FailureDetected: Phase.RESTART,
    DrainRequested: Phase.DRAIN,
    RunFinished: Phase.FINISHED,
}
_BETWEEN_STEPS: Mapping[type[Event], Phase | None] = {
    StepFinished: Phase.WORK,
    EvaluationStarted: Phase.EVALUATION,
    SaveStarted: Phase.SAVE_STALL,
    TrainingFinished: Phase.DRAIN,
}

NEXT_PHASE: Mapping[Phase, Mapping[type[Event], Phase | None]] = {
    Phase.DOWN: {RunStarted: Phase.STARTUP},
    Phase.STARTUP: {**_LIVE, AttemptStarted: Phase.STARTUP, RestoreStarted: Phase.RESTORE},
    Phase.RESTORE: {**_LIVE, TrainingResumed: Phase.WARMUP},
    Phase.WARMUP: {**_LIVE, **_BETWEEN_STEPS},
    Phase.WORK: {**_LIVE, **_BETWEEN_STEPS},
    Phase.EVALUATION: {**_LIVE, EvaluationFinished: BACK},
    Phase.SAVE_STALL: {**_LIVE, SaveUnblocked: BACK, DrainRequested: Phase.SAVE_STALL},
    Phase.RESTART: {**_LIVE, RestoreStarted: Phase.RESTORE},
    Phase.DRAIN: {
        **_LIVE,
        RestoreStarted: Phase.DRAIN,
        TrainingResumed: Phase.DRAIN,
        StepFinished: Phase.DRAIN,
        EvaluationStarted: Phase.DRAIN,
        EvaluationFinished: Phase.DRAIN,
        SaveStarted: Phase.SAVE_STALL,
        TrainingFinished: Phase.DRAIN,
    },
    Phase.FINISHED: {
        RunStarted: Phase.STARTUP,
        AttemptStarted: Phase.RESTART,  # rank 0 had left, and plain torchrun starts all ranks again
        DrainRequested: Phase.FINISHED,
    },
}
"""Where each event leads from each phase; an event that some row knows and this one does not is an error.

`interrupted` has no row: it is what became of `work` and `evaluation` that no step finished.
"""

PHASED: frozenset[type[Event]] = frozenset(kind for row in NEXT_PHASE.values() for kind in row)
"""Events that can change the phase; all others never do."""

OF_A_LIFE: frozenset[type[Event]] = frozenset(
    {RunStarted, AttemptStarted, DrainRequested, RunFinished}
)
"""What a launcher says of the run; the rest of `PHASED` belongs to an attempt, and dies with it."""

PRODUCTIVE = (Phase.WORK, Phase.EVALUATION)
"""What counts towards goodput, unless it is lost later."""

CERTAIN = frozenset({Phase.STARTUP, Phase.RESTORE, Phase.WARMUP, Phase.RESTART, Phase.DRAIN})
"""Time in these is what it is, whatever comes next; it is counted as it passes."""


def diagram() -> str:
    """`NEXT_PHASE` as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.DOWN}"]
    for phase, row in NEXT_PHASE.items():
        edges: dict[Phase, list[str]] = {}
        for kind, target in row.items():
            for follower in _returns(phase) if target is BACK else [target]:
                edges.setdefault(follower, []).append(kind.__name__)
        lines += [f"    {phase} --> {to}: {', '.join(names)}" for to, names in edges.items()]
    return "\n".join([*lines, f"    {Phase.FINISHED} --> [*]", ""])


def _returns(phase: Phase) -> list[Phase]:
    """The phases from which `phase` can be entered, and so returned to."""
    return [
        before for before, row in NEXT_PHASE.items() if phase in row.values() and before != phase
    ]
