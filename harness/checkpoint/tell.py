"""Who is told of what happens to checkpoints: the log, and people."""

import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from harness.events import Event, SaveFailed, Tier


class Records(Protocol):
    """Where events are written, from any thread."""

    def write(self, event: Event, /) -> object:
        """Write one event."""


def said(error: BaseException) -> str:
    """What an error says, and of what kind it is."""
    return f"{type(error).__name__}: {error}"


def warn(line: str) -> None:
    """One line for people; that nobody listens, or that the disk it goes to is full, stops nothing."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"harness: {line}\n")


@dataclass(frozen=True, slots=True)
class Spokesman:
    """Speaks of the whole job's saves, on rank 0; on other ranks it is silent."""

    records: Records
    rank: int

    def tell(self, event: Event) -> None:
        """Record an event of the whole job; that failing stops nothing."""
        if self.rank == 0:
            record(self.records, event)

    def fail(self, step: int, reason: str, tier: Tier = Tier.STORAGE) -> None:
        """Record and say that the state of `step` will not become durable, or not be in memory."""
        self.tell(SaveFailed(step, tier, reason))
        self.complain(step, reason)

    def complain(self, step: int, reason: str) -> None:
        """Say it, where others have recorded it."""
        if self.rank == 0:
            warn(f"the save of step {step} failed: {reason}; training goes on")


def record(records: Records, event: Event) -> None:
    """Record an event; the disk of the log may be the full one."""
    try:
        records.write(event)
    except Exception as error:  # noqa: BLE001  # whatever it is, it stops no save
        warn(f"{event} cannot be recorded: {said(error)}")
