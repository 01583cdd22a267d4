"""How an attempt can end, and how a life of the launcher can."""

from dataclasses import dataclass

from harness.events import Outcome
from launch.exits import Drained, Failed, Finished
from launch.watchdog import Alarm


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Somebody pressed Ctrl-C."""


@dataclass(frozen=True, slots=True)
class GraceExceeded:
    """Ranks were asked to save and leave, and did not in time."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The fork server died, and all ranks with it."""


@dataclass(frozen=True, slots=True)
class Hung:
    """Ranks live, and get nowhere."""

    alarm: Alarm


End = Finished | Drained | Failed | Hung | Interrupted | GraceExceeded | Lost


@dataclass(frozen=True, slots=True)
class Ending:
    """How this life of the launcher ended."""

    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Again:
    """The job goes on with another attempt."""

    wait_s: float
    """Before that begins."""
