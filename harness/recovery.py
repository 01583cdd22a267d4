"""Failures and the way back: which attempt failed, why, and how long each part of the return took.

Of one outage each part of the time is in one record and one stage, so that stages sum to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from harness.events import (
    Cause,
    Event,
    GroupFormed,
    RanksSpawned,
    RanksStopped,
    StacksDumped,
    StateFound,
    Tier,
)
from harness.histogram import Histogram


class Stage(StrEnum):
    """A part of the way from the last finished step to the next first one."""

    DETECT = "detect"
    """Last finished step → failure detected."""
    STACKS = "stacks"
    """→ what every rank was doing is written down; not there where none was asked."""
    TEARDOWN = "teardown"
    """→ no process of the attempt lives."""
    RENDEZVOUS = "rendezvous"
    """→ the next attempt begins: budget, back-off, agreement between nodes."""
    SPAWN = "spawn"
    """→ its rank processes exist."""
    INIT = "init"
    """→ rank 0 looks for a state. Where the group forms before that, forming it is in here."""
    RESTORE = "restore"
    """→ all ranks have read and verified a state."""
    GROUP = "group"
    """→ every rank is in the process group."""
    SETUP = "setup"
    """→ the state is in place: the script has built what it goes into."""
    WARMUP = "warmup"
    """→ the first step is finished."""


@dataclass(frozen=True, slots=True)
class Restart:
    """A failed attempt and the way back from it. What has not happened (yet) is None."""

    attempt: int
    """The one that failed."""
    cause: Cause | None
    """None where no launcher of ours watched: the next attempt's start told."""
    reason: str
    rank: int | None
    failed_at_ns: int
    """When the failure was detected."""
    last_step_at_ns: int | None
    """When the last step before it was finished; None before the first step of the run."""
    last_step: int
    next_attempt: int | None = None
    """None: the launcher gave up, or was not fast enough to be seen again."""
    resumed_step: int | None = None
    tier: Tier | None = None
    """Where the state that it resumed from was; None also for a start from nothing."""
    lost_steps: int = 0
    lost_ns: int = 0
    first_step_at_ns: int | None = None
    """When the first step after it was finished; None for ever for a burnt one."""
    regained_at_ns: int | None = None
    """When the run was as far again as before."""
    burnt: bool = False
    """The attempt ended before a step, and no fault of the tape was in it."""
    faults: tuple[str, ...] = ()
    """Ids of the injected faults that stood in the attempt."""
    phases: Mapping[Stage, int] = field(default_factory=dict)
    """Nanoseconds by stage, of those that were reached."""

    @property
    def regaining_ns(self) -> int | None:
        """From the first step after it until the run was as far again as before."""
        if self.first_step_at_ns is None or self.regained_at_ns is None:
            return None
        return self.regained_at_ns - self.first_step_at_ns

    @property
    def recovery_ns(self) -> int | None:
        """From the last finished step (or the detection, before any) to the first one after."""
        if self.first_step_at_ns is None:
            return None
        since_ns = self.failed_at_ns if self.last_step_at_ns is None else self.last_step_at_ns
        return self.first_step_at_ns - since_ns


UNKNOWN_CAUSE = "unknown"
"""Under this, restarts are counted of which nobody saw the cause."""
FROM_OUTSIDE = (Cause.NODE_LOSS, Cause.PREEMPTION)
"""Causes that no program can repeat by itself: two of them at one step are two."""


@dataclass(slots=True)
class Recovery:
    """All failures of a run; the last of them listed, all of them counted."""

    records: list[Restart] = field(default_factory=list)
    """The last so many."""
    failures: dict[str, int] = field(default_factory=dict)
    """Attempts declared failed, by cause."""
    incidents: dict[str, int] = field(default_factory=dict)
    """The same with a crash loop (the same cause at the same step again) counted once."""
    restarts: dict[str, int] = field(default_factory=dict)
    """Failures after which the same launcher began another attempt, by cause."""
    burnt: int = 0
    until_first_step: Histogram = field(default_factory=Histogram)
    until_regained: Histogram = field(default_factory=Histogram)
    stages: dict[Stage, Histogram] = field(default_factory=dict)
    stage: Stage | None = None
    """Where the way back is; None while nothing has failed."""
    stage_since_ns: int = 0
    open: int = 0
    """How many of the last records the run is not back from."""
    behind: bool = False
    """The run is back at work, and not yet as far as it had been."""

    def fail(self, restart: Restart, idle: bool, keep: int) -> None:
        """An attempt failed, `idle` if it had not come to a step; the last `keep` are listed."""
        self._leave_stage(restart.failed_at_ns)
        cause = restart.cause or UNKNOWN_CAUSE
        self.failures[cause] = self.failures.get(cause, 0) + 1
        again = any((it.cause, it.last_step) == _place(restart) for it in self.records)
        if not again or restart.cause in FROM_OUTSIDE:
            self.incidents[cause] = self.incidents.get(cause, 0) + 1
        self.burnt += restart.burnt
        self.records.append(restart)
        del self.records[:-keep]
        self.open = min(self.open + 1, len(self.records))
        if not idle and restart.last_step_at_ns is not None:
            self._enter(Stage.DETECT, restart.last_step_at_ns)
            self._leave_stage(restart.failed_at_ns)
        self._enter(Stage.TEARDOWN, restart.failed_at_ns)

    def reach(self, stage: Stage, at_ns: int) -> None:
        """The way back comes to `stage`, if there is one and it is not past that already."""
        if self.stage is not None and _ORDER[stage] > _ORDER[self.stage]:
            self._leave_stage(at_ns)
            self._enter(stage, at_ns)

    def observe(self, event: Event, at_ns: int) -> None:
        """What moves no phase of the run may end a part of the way back."""
        match event:
            case StacksDumped() if self.stage is Stage.TEARDOWN:
                self.stage = Stage.STACKS  # so far it was not torn down: ranks wrote their stacks
                self.reach(Stage.TEARDOWN, at_ns)
            case RanksStopped():
                self.reach(Stage.RENDEZVOUS, at_ns)
            case RanksSpawned():
                self.reach(Stage.INIT, at_ns)
            case StateFound():
                self.reach(Stage.GROUP, at_ns)
            # Before anyone looked for a state, it is a part of getting so far.
            case GroupFormed() if self.stage in (Stage.RESTORE, Stage.GROUP):
                self.reach(Stage.SETUP, at_ns)
            case _:
                pass

    def begin_attempt(self, attempt: int) -> None:
        """The launcher tries again."""
        for place in self._open():
            if self.records[place].next_attempt is None:
                cause = self.records[place].cause or UNKNOWN_CAUSE
                self.restarts[cause] = self.restarts.get(cause, 0) + 1
                self.records[place] = replace(self.records[place], next_attempt=attempt)

    def resume(self, step: int, tier: Tier | None, lost_ns: int, lost_steps: int) -> None:
        """A state is in place; the oldest failure that waited for one answers for what is lost."""
        for place in self._open():
            record = self.records[place]
            if record.resumed_step is None:
                self.records[place] = replace(
                    record, resumed_step=step, tier=tier, lost_ns=lost_ns, lost_steps=lost_steps
                )
                lost_ns = lost_steps = 0

    def first_step(self, at_ns: int) -> None:
        """An attempt finished its first step: the run is back."""
        self._leave_stage(at_ns)
        self.stage = None
        for place in self._open():
            record = self.records[place]
            if not record.burnt:
                record = self.records[place] = replace(record, first_step_at_ns=at_ns)
                self.until_first_step.add(record.recovery_ns or 0)
        self.behind = self.behind or self.open > 0
        self.open = 0

    def progress(self, step: int, at_ns: int) -> None:
        """Step `step` is done: some failures may be made up for."""
        self.behind = False
        for place, record in enumerate(self.records):
            if record.first_step_at_ns is None or record.regained_at_ns is not None:
                continue
            if step < record.last_step:
                self.behind = True
                continue
            since_ns = (
                record.failed_at_ns if record.last_step_at_ns is None else record.last_step_at_ns
            )
            self.records[place] = replace(record, regained_at_ns=at_ns)
            self.until_regained.add(at_ns - since_ns)

    def abandon(self) -> None:
        """The launcher left, or is gone: nobody comes back from what is open."""
        self.stage = None
        self.open = 0

    def _open(self) -> range:
        return range(len(self.records) - self.open, len(self.records))

    def _enter(self, stage: Stage, at_ns: int) -> None:
        self.stage, self.stage_since_ns = stage, at_ns

    def _leave_stage(self, at_ns: int) -> None:
        """Book the time in the stage that ends to the newest failure."""
        duration_ns = at_ns - self.stage_since_ns
        if self.stage is None or self.open == 0 or duration_ns == 0:
            return
        record = self.records[-1]
        phases = {**record.phases, self.stage: record.phases.get(self.stage, 0) + duration_ns}
        self.records[-1] = replace(record, phases=phases)
        self.stages.setdefault(self.stage, Histogram()).add(duration_ns)


def _place(restart: Restart) -> tuple[Cause | None, int]:
    """What is the same each time that a run crashes in a loop."""
    return restart.cause, restart.last_step


_ORDER = {stage: place for place, stage in enumerate(Stage)}
