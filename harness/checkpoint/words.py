"""What rank 0 tells all ranks of saves, so that no two ranks can disagree."""

from dataclasses import dataclass

from harness.checkpoint.policy import Answer


@dataclass(frozen=True, slots=True)
class Reply:
    """Whether a save begins at this boundary."""

    step: int
    answer: Answer
    trial: int = 1
    """Counts the saves of one step in one attempt; another follows only a failed one."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """How the last save ended, where another process was to write it."""

    durable_step: int | None
    again: bool
    """Its saver has gone, and another is there."""
