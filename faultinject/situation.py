"""What the injector knows of its run, folded from the run's log, and what it does next. Pure.

Tape time counts from the first committed save for as long as a launcher lives. A fault whose target
is down waits for it: no fault strikes before the newest attempt has finished a step, so faults that
fell due meanwhile come one to an attempt and not all at once.
"""

from dataclasses import dataclass, field

from faultinject.tape import Fault, Tape
from harness.events import (
    AttemptStarted,
    Entry,
    FailureDetected,
    FaultConfirmed,
    FaultDeferred,
    FaultInjected,
    FaultSkipped,
    Outcome,
    RankJoined,
    RunFinished,
    RunStarted,
    SaveCommitted,
    StepFinished,
    TrainingFinished,
)

NO_ATTEMPT = -1


@dataclass(slots=True)
class Situation:
    """The run as its log shows it. What the injector wrote may come twice: once written, once read."""

    lethal: frozenset[str]
    """Kinds of fault after which no rank of the attempt goes on."""
    zero_ns: int | None = None
    """When tape time began, on the run's axis; later by the time that no launcher lived."""
    last_ns: int = 0
    """The newest entry of anyone but the injector."""
    world_size: int | None = None
    attempt: int = NO_ATTEMPT
    stepped: int = NO_ATTEMPT
    """Newest attempt that has finished a step."""
    over: int = NO_ATTEMPT
    """Newest attempt in which nothing is left to be hit …"""
    over_because: str = ""
    """… since it failed, was hit by a lethal fault, or has trained to its end."""
    committed_step: int = -1
    """Highest step whose state was ever durable."""
    trained_step: int | None = None
    """The last step of the training, once that is done."""
    outcome: Outcome | None = None
    """How the launcher left, while none has taken up the run again."""
    injected: dict[str, int] = field(default_factory=dict)
    """Attempt that each fault hit."""
    confirmed: set[str] = field(default_factory=set)
    deferred: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)

    def feed(self, entry: Entry) -> None:
        """Take in one entry of the log."""
        if not self._own(entry):
            self._others(entry)
            self.last_ns = max(self.last_ns, entry.at_ns)

    def _own(self, entry: Entry) -> bool:
        """Take in what an injector wrote: this one, or one before it."""
        match entry.event:
            case FaultInjected(id=id, kind=kind):
                self.injected.setdefault(id, entry.attempt)
                if kind in self.lethal:
                    self._end(entry.attempt, f"was hit by {id}")
            case FaultConfirmed(id=id):
                self.confirmed.add(id)
            case FaultDeferred(id=id):
                self.deferred.add(id)
            case FaultSkipped(id=id):
                self.skipped.add(id)
            case _:
                return False
        return True

    def _others(self, entry: Entry) -> None:
        match entry.event:
            case RunStarted(world_size=world_size):
                self.world_size = world_size
                self._taken_up(entry.at_ns)
            case AttemptStarted(world_size=world_size):
                self.world_size = world_size
                self.attempt = max(self.attempt, entry.attempt)
            case RankJoined():
                self.attempt = max(self.attempt, entry.attempt)
            case StepFinished():
                self.attempt = max(self.attempt, entry.attempt)
                self.stepped = max(self.stepped, entry.attempt)
            case FailureDetected():
                self._end(entry.attempt, "failed")
            case TrainingFinished(step=step):
                self._end(entry.attempt, "has trained to its end")
                self.trained_step = step
            case SaveCommitted(step=step):
                self.zero_ns = entry.at_ns if self.zero_ns is None else self.zero_ns
                self.committed_step = max(self.committed_step, step)
            case RunFinished(outcome=outcome):
                self.outcome = outcome
            case _:
                pass

    def _end(self, attempt: int, because: str) -> None:
        if attempt > self.over:
            self.over, self.over_because = attempt, because

    def _taken_up(self, at_ns: int) -> None:
        """A launcher lives: the time since the last sign of life does not count."""
        if self.zero_ns is not None:
            self.zero_ns += max(0, at_ns - max(self.last_ns, self.zero_ns))
        self.outcome, self.trained_step = None, None

    @property
    def finished(self) -> bool:
        """The last step is done and durable: whatever happens now, the job has finished."""
        durable = self.trained_step is not None and self.committed_step >= self.trained_step
        return durable or self.outcome is Outcome.FINISHED

    @property
    def down(self) -> str:
        """Why no rank can be hit now; empty where they can."""
        if self.attempt == NO_ATTEMPT:
            return "no attempt has started"
        if self.over >= self.attempt:
            return f"attempt {self.over} {self.over_because}, and no other has started"
        if self.stepped < self.attempt:
            return f"attempt {self.attempt} has not finished a step yet"
        return ""


# ── what to do ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until_ns`, or before the log says more."""

    until_ns: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Defer:
    """The fault is due and its target is down."""

    fault: Fault
    reason: str


@dataclass(frozen=True, slots=True)
class Strike:
    """The fault is due and its target should be up."""

    fault: Fault
    attempt: int


@dataclass(frozen=True, slots=True)
class Settle:
    """The fault was logged as injected, and nobody has seen it take effect."""

    fault: Fault
    attempt: int
    """The one that it was meant for."""


@dataclass(frozen=True, slots=True)
class Skip:
    """The fault will not happen."""

    fault: Fault
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing is left to do in this life of the run."""

    reason: str


Move = Wait | Defer | Strike | Settle | Skip | Leave


def decide(now_ns: int, tape: Tape, situation: Situation) -> Move:
    """What the injector does next; `now_ns` is on the run's axis."""
    for fault in tape.faults:
        if fault.id in situation.injected and fault.id not in situation.confirmed:
            return Settle(fault, situation.injected[fault.id])
    pending = [
        fault
        for fault in tape.faults
        if fault.id not in situation.injected and fault.id not in situation.skipped
    ]
    if not pending:
        return Leave("every fault of the tape is accounted for")
    if situation.finished:
        return Skip(pending[0], "the run finished first")
    if situation.outcome is not None:
        return Leave(f"the run was {situation.outcome}; what is left waits for it to go on")
    return _next(now_ns, pending[0], situation)


def _next(now_ns: int, fault: Fault, situation: Situation) -> Move:
    if situation.zero_ns is None:
        return Wait(None, "no save has been committed yet")
    due_ns = situation.zero_ns + round(fault.at_s * 1e9)
    if now_ns < due_ns:
        reason = f"{fault.id} is next: {fault.kind} of {fault.target} at {fault.at_s:.1f} s"
        return Wait(due_ns, reason)
    if situation.world_size is not None and fault.target.number >= situation.world_size:
        return Skip(fault, f"{fault.target} does not exist at {situation.world_size} ranks")
    if situation.down:
        return Defer(fault, situation.down)
    return Strike(fault, situation.attempt)
