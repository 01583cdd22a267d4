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
    """No fork server, or none that can fork: the attempt ended by our fault."""

    reason: str


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


def grace_exceeded(grace_s: float, saved_step: int | None, uses_library: bool) -> Ending:
    """Of ranks that had not left in time; `saved_step` is the one that all of them had saved, if they had."""
    within = f"within {grace_s:g} s (--grace)"
    if saved_step is None:
        what = f"not every rank had saved {within}{_standing(uses_library)}"
    else:
        what = f"all ranks had saved, after step {saved_step}, but not all had left {within}"
    return Ending(Outcome.DRAINED, f"grace exceeded: {what}")


def failed_while_draining(fault: str, uses_library: bool) -> Ending:
    """Of ranks that failed when they were to save and leave."""
    return Ending(Outcome.DRAINED, f"{fault} while draining{_standing(uses_library)}")


def _standing(uses_library: bool) -> str:
    """What there is to go on from; of a script without the library nobody knows."""
    return "; what was committed before stands" if uses_library else ""
