"""What whoever saves says: what became durable, what did not, what retention removed."""

from dataclasses import dataclass

from harness.events.entry import Event
from harness.events.words import Tier


@dataclass(frozen=True, slots=True)
class SaveCommitted(Event):
    """The state of `step` is durable and may be resumed from."""

    step: int
    tier: Tier
    bytes: int


@dataclass(frozen=True, slots=True)
class SaveFailed(Event):
    """The state of `step` will not become durable; training goes on without it."""

    step: int
    tier: Tier
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointDeleted(Event):
    """Retention removed a checkpoint."""

    step: int
    saved_by: int
