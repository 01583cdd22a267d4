"""The words that events use: where a copy lives, why an attempt ended, how a run did."""

from collections.abc import Mapping
from enum import StrEnum


class Tier(StrEnum):
    """Where a copy of the training state lives."""

    MEMORY = "memory"
    STORAGE = "storage"


class Cause(StrEnum):
    """Why an attempt ended, as the launcher could tell."""

    SIGNAL = "signal"
    EXIT = "exit"
    EXCEPTION = "exception"
    OOM = "oom"
    HANG = "hang"
    NODE_LOSS = "node_loss"
    PREEMPTION = "preemption"
    NONFINITE = "nonfinite"
    CORRUPTION = "corruption"
    HELPER = "helper"


class Rejection(StrEnum):
    """Why a checkpoint was walked past on restore."""

    CHECKSUM = "checksum"
    MISSING = "missing"
    TORN = "torn"
    UNREADABLE = "unreadable"


class Place(StrEnum):
    """Where a number that is none was found."""

    LOSS = "loss"
    GRADIENT = "gradient"
    WEIGHTS = "weights"
    """After the optimizer's step, and before they were saved."""


class Reaction(StrEnum):
    """What follows a finding about the health of training."""

    FAIL = "fail"
    """The attempt ends, and the run goes on from a checkpoint."""
    SKIP = "skip"
    """No rank takes the optimizer's step."""
    REPORT = "report"
    """It is told, and training goes on."""


class Outcome(StrEnum):
    """How a run (one life of its launcher) ended."""

    FINISHED = "finished"
    FAILED = "failed"
    DRAINED = "drained"
    INTERRUPTED = "interrupted"


EXIT_CODES: Mapping[Outcome, int] = {
    Outcome.FINISHED: 0,
    Outcome.FAILED: 1,
    Outcome.DRAINED: 75,
    Outcome.INTERRUPTED: 130,
}
"""Exit status of the launcher by outcome; 2 is kept for mistakes in how it was called."""
