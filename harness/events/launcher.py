"""What a launcher says of the run and its attempts; under plain `torchrun`, rank 0 the first two."""

from dataclasses import dataclass

from harness.events.entry import Event
from harness.events.words import Cause, Outcome


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """A launcher took up the run: for the first time, or again after it was down."""

    run_id: str
    world_size: int
    tool: str = "harness"
    """Who launches: `harness`, `torchrun` or `simulate`."""


@dataclass(frozen=True, slots=True)
class AttemptStarted(Event):
    """A new attempt begins; its number is the entry's. Every start and every rollback is one."""

    world_size: int


@dataclass(frozen=True, slots=True)
class RanksSpawned(Event):
    """The attempt's rank processes exist."""

    world_size: int
    warm: bool
    """Forked from a parent that had imported torch already."""
    reason: str = ""
    """Why they started cold, where they did."""


@dataclass(frozen=True, slots=True)
class FailureDetected(Event):
    """The attempt is lost; whatever its ranks still write changes nothing."""

    rank: int | None
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True)
class StacksDumped(Event):
    """What every rank was doing was written to the incident's folder."""

    path: str


@dataclass(frozen=True, slots=True)
class RanksStopped(Event):
    """No process of the attempt lives any more."""


@dataclass(frozen=True, slots=True)
class HelperRestarted(Event):
    """A process that serves the job had died, and there is another in its place."""

    name: str
    """`saver`, `exporter`, `injector` or `fork server`."""
    reason: str
    """What the former one died of."""


@dataclass(frozen=True, slots=True)
class DrainRequested(Event):
    """The machine is wanted back: save at the next step boundary and leave."""

    grace_s: float


@dataclass(frozen=True, slots=True)
class RunFinished(Event):
    """The launcher leaves the run, for good or until it is called again."""

    outcome: Outcome
    reason: str = ""
