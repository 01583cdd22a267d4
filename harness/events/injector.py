"""What the injector says of each fault: it waits, strikes, is seen, is undone, or stays out."""

from dataclasses import dataclass

from harness.events.entry import Event


@dataclass(frozen=True, slots=True)
class FaultDeferred(Event):
    """A fault fell due while its target was down, and waits for it."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class FaultInjected(Event):
    """Written *before* the fault acts, so that no fault is ever unlogged."""

    id: str
    kind: str
    target: str
    """What it hits, as in the tape: `rank 3`, `node 0`, `store`."""


@dataclass(frozen=True, slots=True)
class FaultConfirmed(Event):
    """The fault was seen to have taken effect."""

    id: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class FaultLifted(Event):
    """What the fault had done was undone."""

    id: str


@dataclass(frozen=True, slots=True)
class FaultSkipped(Event):
    """The fault will not happen: the run ended first, or its target refused to be one."""

    id: str
    reason: str
