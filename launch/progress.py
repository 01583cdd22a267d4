"""What is known of the ranks' progress, from one look at their slots to the next.

Told by change alone, on the launcher's clock, which passes while it looks: no other process' clock,
and no sleep of the launcher itself, makes a rank seem late.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from harness.slots import Mark, Slot, Stage

NS = 1_000_000_000
ATTENTION_NS = NS
"""What counts of the time between two looks: where it is more, the launcher itself was held up."""
HOUR_NS = 3600 * NS
HOURS = 24
"""For how long a slow step is remembered; see docs/decisions/0130."""
STEADY_STEPS = 3
"""Normal steps to see until they say how long one may take."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The slowest normal step of each of the last hours. A day of them is all that is kept."""

    hours: tuple[tuple[int, int], ...] = ()
    """Number of the hour and nanoseconds of its slowest step, newest last."""
    count: int = 0
    """Steps seen, up to `STEADY_STEPS`."""

    @property
    def slowest_ns(self) -> int:
        """Of the last day."""
        return max((ns for _, ns in self.hours), default=0)

    def noted(self, at_ns: int, took_ns: int, steps: int = 1) -> "Steps":
        """These and some more that ended by `at_ns`, the slowest of which took `took_ns`."""
        hour = at_ns // HOUR_NS
        count = min(self.count + steps, STEADY_STEPS)
        if not self.hours or self.hours[-1][0] != hour:
            kept = tuple(it for it in self.hours if it[0] > hour - HOURS)
            return Steps((*kept, (hour, took_ns)), count)
        if took_ns > self.hours[-1][1]:
            return Steps((*self.hours[:-1], (hour, took_ns)), count)
        return self if count == self.count else Steps(self.hours, count)


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of one rank of the attempt."""

    slot: Slot | None = None
    """What it showed last; None before it joined."""
    since_ns: int = 0
    """When it, or one whom it may wait for, last showed something new."""
    stepped_ns: int = 0
    """When it was last seen to have finished a step …"""
    is_usual: bool = False
    """… and that since then it did nothing else than a step that is not its first."""


@dataclass(frozen=True, slots=True)
class Watched:
    """All that is remembered between two looks."""

    clock_ns: int
    """Time for which the launcher has looked."""
    looked_ns: int
    """CLOCK_MONOTONIC of the last look."""
    ranks: tuple[Progress, ...]
    steps: Steps = field(default_factory=Steps)


def begin(now_ns: int, ranks: int, before: Watched | None = None) -> Watched:
    """What is known as an attempt begins: of the ranks nothing, of steps what earlier ones showed."""
    clock_ns = 0 if before is None else before.clock_ns
    fresh = Progress(since_ns=clock_ns, stepped_ns=clock_ns)
    return Watched(clock_ns, now_ns, (fresh,) * ranks, Steps() if before is None else before.steps)


def look(before: Watched, now_ns: int, attempt: int, slots: Sequence[Slot | None]) -> Watched:
    """What is known after `slots` were seen at `now_ns`; those of other attempts say nothing."""
    passed_ns = now_ns - before.looked_ns
    clock_ns = before.clock_ns + min(passed_ns, ATTENTION_NS)
    seen = [slot if slot is not None and slot.attempt == attempt else None for slot in slots]
    moved = [
        position(old.slot)
        for old, slot in zip(before.ranks, seen, strict=True)
        if _differ(old.slot, slot)
    ]
    if not moved:
        return replace(before, clock_ns=clock_ns, looked_ns=now_ns)
    ranks, steps, behind = [], before.steps, min(moved)
    for old, slot in zip(before.ranks, seen, strict=True):
        if slot is not None and passed_ns <= ATTENTION_NS:
            taken, took_ns = _normal_steps(old, slot, clock_ns)
            steps = steps.noted(clock_ns, took_ns, taken) if taken > 0 else steps
        ranks.append(_followed(old, slot, clock_ns, behind))
    return Watched(clock_ns, now_ns, tuple(ranks), steps)


def position(slot: Slot | None) -> tuple[int, int, int]:
    """How far a rank has come in its attempt; what comes before is what others may wait for."""
    if slot is None:
        return (-1, 0, 0)
    return (
        _ORDER.index(slot.mark) if slot.mark in _ORDER else len(_ORDER),
        slot.step,
        slot.reached,
    )


def doing(slot: Slot | None) -> str:
    """What a rank that shows `slot` does, in words."""
    if slot is None:
        return "before it joined"
    if slot.mark is Mark.STEPPING:
        if slot.stage is Stage.BOUNDARY:
            return f"after step {slot.step}, {_STAGES[slot.stage]}"
        return f"in step {slot.step + 1}, {_STAGES[slot.stage]}"
    if slot.mark in (Mark.EVALUATING, Mark.SAVING):
        return f"{_MARKS[slot.mark]} after step {slot.step}"
    return _MARKS[slot.mark]


_ORDER = (Mark.JOINING, Mark.RESTORING, Mark.GROUPING, Mark.SETTING_UP)
"""What comes before the loop, one after the other."""
_MARKS = {
    Mark.JOINING: "while joining",
    Mark.RESTORING: "while restoring",
    Mark.GROUPING: "while the process group formed",
    Mark.SETTING_UP: "between join and the first step",
    Mark.EVALUATING: "while evaluating",
    Mark.SAVING: "while saving",
    Mark.DRAINED: "while leaving",
    Mark.FINISHED: "after the job was done",
}
_STAGES = {
    Stage.BOUNDARY: "before the next",
    Stage.BEGUN: "before its first batch or gradient",
    Stage.LOADING: "in the data loader",
    Stage.COMPUTING: "in forward or backward",
    Stage.REDUCING: "with its gradients ready",
    Stage.UPDATING: "in the optimizer",
    Stage.UPDATED: "after the optimizer",
}


def _differ(old: Slot | None, new: Slot | None) -> bool:
    if old is None or new is None:
        return old is not new
    return old.progress != new.progress or old.pid != new.pid


def _followed(
    old: Progress, slot: Slot | None, clock_ns: int, behind: tuple[int, int, int]
) -> Progress:
    """A rank after a look that saw somebody move away from `behind`."""
    has_moved = _differ(old.slot, slot)
    since_ns = clock_ns if has_moved or position(slot) >= behind else old.since_ns
    if slot is None or old.slot is None or slot.step != old.slot.step:
        is_usual = slot is not None and slot.mark is Mark.STEPPING and not slot.in_first_step
        return Progress(slot, since_ns, clock_ns, is_usual)
    is_usual = old.is_usual and slot.mark is Mark.STEPPING
    return Progress(slot, since_ns, old.stepped_ns, is_usual)


def _normal_steps(old: Progress, slot: Slot, clock_ns: int) -> tuple[int, int]:
    """How many normal steps were taken since the last look, and how long the slowest took, at most."""
    before = 0 if old.slot is None else old.slot.taken
    taken, last_ns = slot.taken - before, slot.own_ns + slot.wait_ns
    if not old.is_usual:  # the first of them is none; of more, the last can be told
        return taken - 1, last_ns
    if taken == 1:
        return 1, last_ns
    return taken, clock_ns - old.stepped_ns  # the slowest took no longer than all of them
