"""The way back of a simulated job: which parts a restart has, and what is said after each of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never

from harness.events import (
    AttemptStarted,
    CheckpointRejected,
    Event,
    GroupFormed,
    RanksSpawned,
    RanksStopped,
    Rejection,
    RestoreStarted,
    StacksDumped,
    StateFound,
    StepFinished,
    TrainingResumed,
)
from harness.recovery import Stage
from harness.simulation.draws import Draw
from harness.simulation.laws import Constant, Law
from harness.simulation.saves import Saved

_SAID_IF_IT_LASTS = frozenset({Stage.STACKS, Stage.RESTORE, Stage.GROUP})
"""Ends of parts that nothing but these parts' own lengths hangs on."""

Stages = Mapping[Stage, Law]
"""How long the parts of a restart last; one that is not named lasts no time."""


def whole(restart_s: float) -> Stages:
    """A restart of which only the whole is known: it counts as starting the ranks."""
    return {Stage.SPAWN: Constant(restart_s)}


def way_back(
    since_s: float,
    since: Stage,
    stages: Stages,
    draw: Draw,
    *,
    resumed: Saved,
    rejected: Sequence[Saved] = (),
    ranks: int,
    wait_s: float = 0.0,
) -> Iterator[tuple[float, Event]]:
    """What is said, and when, from the part `since` of a restart to the first step after it.

    That step has no work in it: what it lasts is warm-up. `wait_s` is spent waiting for a node.
    """
    at_s = since_s
    for stage in list(Stage)[list(Stage).index(since) :]:
        if stage in stages:
            at_s += stages[stage].quantile_s(draw())
        if stage is Stage.RENDEZVOUS:
            at_s += wait_s
        if stage in stages or stage not in _SAID_IF_IT_LASTS:
            for event in _said_after(stage, resumed, rejected, ranks):
                yield at_s, event


def _said_after(stage: Stage, resumed: Saved, rejected: Sequence[Saved], ranks: int) -> list[Event]:
    said: list[Event]
    match stage:
        case Stage.STACKS:
            said = [StacksDumped("")]
        case Stage.TEARDOWN:
            said = [RanksStopped()]
        case Stage.RENDEZVOUS:
            said = [AttemptStarted(ranks)]
        case Stage.SPAWN:
            said = [RanksSpawned(ranks, warm=False)]
        case Stage.INIT:
            said = [RestoreStarted()]
        case Stage.RESTORE:
            said = [StateFound(resumed.step, resumed.tier)]
        case Stage.GROUP:
            said = [GroupFormed(ranks)]
        case Stage.SETUP:
            resume = TrainingResumed(resumed.step, resumed.tier, resumed.attempt)
            said = [*(_walked_past(saved) for saved in rejected), resume]
        case Stage.DETECT | Stage.WARMUP:
            said = [StepFinished(resumed.step + 1, resumed.step, resumed.step + 1)]
        case _:
            assert_never(stage)
    return said


def _walked_past(saved: Saved) -> CheckpointRejected:
    reason = "saved after the numbers had gone wrong"
    return CheckpointRejected(saved.step, saved.attempt or 0, Rejection.CHECKSUM, reason)
