"""Whether the job hangs, and at which ranks. Decides, from what is known of their progress.

A rank hangs when it shows nothing new for longer than what it does may take, and nobody whom it may
be waiting for is within its own time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import assert_never

from harness.slots import Mark, Slot
from launch.progress import NS, STEADY_STEPS, Progress, Steps, doing, position

LOOK_S = 0.25
"""From one look at the ranks to the next; what that costs, benchmarks/noticing.py tells."""
PATIENCE = 4
"""How much more patience a normal step gets for each alarm that there was in it."""
NO_ALARMS: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a rank may show nothing new, by what it does."""

    step_ns: int = 5 * NS // 2
    """In a normal step, where that is more than `factor` times the slowest one: with a look to see the
    last sign and one to miss the next, within 3 s."""
    factor: int = 5
    startup_ns: int = 600 * NS
    """Before it joins, while the group forms, and while data and model are made."""
    restore_ns: int = 600 * NS
    first_step_ns: int = 1200 * NS
    """In the first step of an attempt, and while too few normal ones were seen."""
    evaluation_ns: int = 1200 * NS
    save_ns: int = 900 * NS


@dataclass(frozen=True, slots=True)
class Bound:
    """How long one rank may show nothing new, and by which limit."""

    ns: int
    limit: str

    def __str__(self) -> str:
        return f"{self.ns / NS:.3g} s, {self.limit}"


@dataclass(frozen=True, slots=True)
class Alive:
    """Every rank is within its time, or waits for one that is."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """The job hangs."""

    suspects: tuple[int, ...]
    """Of the ranks whose time is over, those that came least far: one, unless they are equals."""
    doing: str
    """What the first of them does, in words."""
    silent_ns: int
    """For how long it has shown nothing new."""
    bound: Bound

    @property
    def reason(self) -> str:
        """What is wrong, in words."""
        return (
            f"made no progress for {self.silent_ns / NS:.1f} s {self.doing} (limit: {self.bound})"
        )


Decision = Alive | Alarm


def decide(
    now_ns: int,
    progress: Mapping[int, Progress],
    steps: Steps,
    limits: Limits,
    alarms: Mapping[int, int] = NO_ALARMS,
) -> Decision:
    """Whether the ranks in `progress`, those that live, hang at `now_ns` of the clock of `Watched`.

    `alarms` counts those that there were in normal steps, each under the step finished before it.
    """
    bounds = {rank: bound(it.slot, steps, limits, alarms) for rank, it in progress.items()}
    overdue: list[int] = []
    in_time: list[tuple[int, int, int]] = []
    for rank, limit in bounds.items():
        if limit is None:
            continue
        if now_ns - progress[rank].since_ns > limit.ns:
            overdue.append(rank)
        else:
            in_time.append(position(progress[rank].slot))
    waited_for = min(in_time, default=None)
    places = {rank: position(progress[rank].slot) for rank in overdue}
    stuck = [rank for rank in overdue if waited_for is None or places[rank] < waited_for]
    if not stuck:
        return Alive()
    least = min(places[rank] for rank in stuck)
    suspects = tuple(rank for rank in stuck if places[rank] == least)
    first = progress[suspects[0]]
    limit = bounds[suspects[0]]
    assert limit is not None
    return Alarm(suspects, doing(first.slot), now_ns - first.since_ns, limit)


def in_normal_step(slot: Slot | None, steps: Steps) -> bool:
    """True for a rank that takes a step which `steps` tell how long it may last."""
    is_stepping = slot is not None and slot.mark is Mark.STEPPING and not slot.in_first_step
    return is_stepping and steps.count >= STEADY_STEPS


def bound(
    slot: Slot | None, steps: Steps, limits: Limits, alarms: Mapping[int, int] = NO_ALARMS
) -> Bound | None:
    """How long a rank that shows `slot` may show nothing new; None where nobody watches it."""
    if slot is None:
        return Bound(limits.startup_ns, "--startup-limit")
    allowed: Bound | None = None
    match slot.mark:
        case Mark.JOINING | Mark.GROUPING | Mark.SETTING_UP:
            allowed = Bound(limits.startup_ns, "--startup-limit")
        case Mark.RESTORING:
            allowed = Bound(limits.restore_ns, "--restore-limit")
        case Mark.EVALUATING:
            allowed = Bound(limits.evaluation_ns, "--evaluation-limit")
        case Mark.SAVING:
            allowed = Bound(limits.save_ns, "--save-limit")
        case Mark.STEPPING:
            allowed = _step_bound(slot, steps, limits, alarms.get(slot.step, 0))
        case Mark.DRAINED | Mark.FINISHED:
            pass
        case _:
            assert_never(slot.mark)
    return allowed


def _step_bound(slot: Slot, steps: Steps, limits: Limits, alarms: int) -> Bound:
    if not in_normal_step(slot, steps):
        return Bound(limits.first_step_ns, "--first-step-limit")
    times = PATIENCE**alarms
    more = "" if alarms == 0 else f"{times} × as there was an alarm at this step, "
    slow_ns = limits.factor * steps.slowest_ns
    if slow_ns <= limits.step_ns:
        return Bound(times * limits.step_ns, f"{more}--hang-after")
    words = f"{more}{limits.factor} × the slowest normal step of the last day"
    return Bound(times * slow_ns, words)
