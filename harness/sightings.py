"""What is known of the tape's faults, as the injector told it. All of it bounded, all of it from the log."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from harness.events import FaultConfirmed, FaultDeferred, FaultInjected, FaultLifted, FaultSkipped
from harness.histogram import Histogram


class Scope(StrEnum):
    """What a fault acts on."""

    RANK = "rank"
    NODE = "node"
    STORAGE = "storage"
    NETWORK = "network"


_SCOPES = {"rank": Scope.RANK, "node": Scope.NODE, "store": Scope.STORAGE, "network": Scope.NETWORK}
"""By the first word of a fault's target."""


class FaultState(StrEnum):
    """How far a fault of the tape has come."""

    DEFERRED = "deferred"
    INJECTED = "injected"
    CONFIRMED = "confirmed"
    LIFTED = "lifted"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the tape and what became of it."""

    id: str
    state: FaultState
    kind: str = ""
    target: str = ""
    detail: str = ""
    """What the injector said last: why deferred or skipped, how confirmed."""
    deferred: bool = False
    """It had to wait for its target."""
    injected_at_ns: int | None = None
    attempt: int | None = None
    """The attempt that it hit."""


FaultEvent = FaultDeferred | FaultInjected | FaultConfirmed | FaultLifted | FaultSkipped


@dataclass(slots=True)
class Faults:
    """All faults that the injector spoke of."""

    records: list[Fault] = field(default_factory=list)
    """The last so many, in the order in which they were first heard of."""
    injected: dict[Scope, dict[str, int]] = field(default_factory=dict)
    """How many, by what they act on and by kind."""
    states: dict[FaultState, int] = field(default_factory=dict)
    """How many ever came to each state."""
    detections: dict[str, Histogram] = field(default_factory=dict)
    """From the injection to the detection of the failure, by kind."""

    def observe(self, event: FaultEvent, attempt: int, at_ns: int, keep: int) -> None:
        """The injector said something of a fault; the last `keep` are listed."""
        place = next((i for i, f in enumerate(self.records) if f.id == event.id), None)
        if place is None:
            place = len(self.records)
            self.records.append(Fault(event.id, FaultState.DEFERRED))
        before = self.records[place]
        after = _changed(before, event, attempt, at_ns)
        self.records[place] = after
        self.states[after.state] = self.states.get(after.state, 0) + 1
        if isinstance(event, FaultInjected):
            kinds = self.injected.setdefault(scope_of(event.target), {})
            kinds[event.kind] = kinds.get(event.kind, 0) + 1
        del self.records[:-keep]

    def hit(self, attempt: int) -> bool:
        """Whether any fault acted on `attempt`."""
        return any(
            fault.attempt == attempt and fault.state is not FaultState.SKIPPED
            for fault in self.records
        )

    def detect(self, attempt: int, at_ns: int) -> tuple[str, ...]:
        """Attempt `attempt` failed: gives the ids of the faults that stood in it."""
        led: list[str] = []
        for fault in self.records:
            standing = fault.state in (FaultState.INJECTED, FaultState.CONFIRMED)
            # A call to the storage that was spoilt is over with it, and most are survived.
            standing = standing and _first(fault.target) != "store"
            if standing and fault.attempt == attempt and fault.injected_at_ns is not None:
                led.append(fault.id)
                latency_ns = at_ns - fault.injected_at_ns
                self.detections.setdefault(fault.kind, Histogram()).add(latency_ns)
        return tuple(led)


def scope_of(target: str) -> Scope:
    """What a fault with this target acts on."""
    return _SCOPES.get(_first(target), Scope.RANK)


def _first(target: str) -> str:
    return target.split(" ", maxsplit=1)[0]


def _changed(fault: Fault, event: FaultEvent, attempt: int, at_ns: int) -> Fault:
    match event:
        case FaultDeferred():
            return replace(fault, state=FaultState.DEFERRED, deferred=True, detail=event.reason)
        case FaultInjected():
            return replace(
                fault,
                state=FaultState.INJECTED,
                kind=event.kind,
                target=event.target,
                injected_at_ns=at_ns,
                attempt=attempt,
            )
        case FaultConfirmed():
            return replace(fault, state=FaultState.CONFIRMED, detail=event.detail)
        case FaultLifted():
            return replace(fault, state=FaultState.LIFTED)
        case FaultSkipped():
            return replace(fault, state=FaultState.SKIPPED, detail=event.reason)
