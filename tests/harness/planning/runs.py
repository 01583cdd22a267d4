"""Runs to plan from: one that fails for many reasons, by hand."""

from collections.abc import Sequence

from harness.events import (
    AttemptStarted,
    Cause,
    Entry,
    Event,
    FailureDetected,
    Outcome,
    RestoreStarted,
    RunFinished,
    RunStarted,
    SaveCommitted,
    SaveStarted,
    SaveUnblocked,
    StepFinished,
    Tier,
    TrainingResumed,
)

S = 1_000_000_000
H = 3600.0


def failing(up_s: Sequence[float], causes: Sequence[Cause], steps: Sequence[int]) -> list[Entry]:
    """A run on 8 ranks that is up for each `up_s` and then fails; a restart takes 60 s.

    It starts from nothing each time, and comes to `steps` before it fails. The last stretch of
    `up_s`, where there is one more, ends with the run's end.
    """
    told: list[Entry] = []

    def say(at_s: float, attempt: int, event: Event) -> None:
        told.append(Entry(round(at_s * S), attempt, len(told), event, "rank-0"))

    say(0, -1, RunStarted("r", 8))
    now = 0.0
    for attempt, length_s in enumerate(up_s):
        say(now, attempt, AttemptStarted(8))
        say(now + 10, attempt, RestoreStarted())
        say(now + 50, attempt, TrainingResumed(0, None))
        now += 60
        last = steps[attempt] if attempt < len(steps) else 2
        say(now, attempt, StepFinished(1, 0, 8))
        say(now + 1, attempt, SaveStarted(1, Tier.STORAGE))
        say(now + 3, attempt, SaveUnblocked(1, Tier.STORAGE))
        say(now + 8, attempt, SaveCommitted(1, Tier.STORAGE, 4_000_000_000))
        for number in range(2, last + 1):
            at_s = now + length_s * number / (last + 1)
            say(at_s, attempt, StepFinished(number, 8 * number - 8, 8 * number))
        now += length_s
        if attempt < len(causes):
            say(now, attempt, FailureDetected(0, causes[attempt], "as it was told"))
    say(now, len(up_s) - 1, RunFinished(Outcome.DRAINED))
    return told


def many_causes() -> list[Entry]:
    """20 crashes at one step, 3 preemptions and 4 lost nodes in 40 hours of training."""
    causes = [
        *[Cause.NODE_LOSS] * 2,
        *[Cause.EXCEPTION] * 20,
        *[Cause.PREEMPTION] * 3,
        *[Cause.NODE_LOSS] * 2,
    ]
    steps = [3, 5, *[2] * 20, 7, 8, 9, 3, 3]
    crashing_s = 20 * 60.0
    others = 7 + 1
    up_s = [
        60.0 if cause is Cause.EXCEPTION else (40 * H - crashing_s) / others for cause in causes
    ]
    return failing([*up_s, (40 * H - crashing_s) / others], causes, steps)
