"""What is known of ranks, readings and helpers. All of it bounded, all of it from the log."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure that training read off after `step`."""

    step: int
    value: float


MOST_LOWS = 4096
"""No run has so many losses, each lower than all before it; of one that does, the lowest are kept."""


@dataclass(frozen=True, slots=True)
class Low:
    """A loss on held-out data, lower than all that the run held before it."""

    step: int
    loss: float
    wall_ns: int
    """Since the run was first started."""


@dataclass(slots=True)
class Lows:
    """All of them that the run holds: when it came to any loss follows from these."""

    found: list[Low] = field(default_factory=list)

    def add(self, low: Low) -> None:
        """An evaluation ended; what is not lower than the last one is none."""
        if low.loss < (self.found[-1].loss if self.found else math.inf):
            self.found.append(low)
            del self.found[:-MOST_LOWS]

    def go_back(self, step: int) -> None:
        """The run holds `step` again: what came after it is as if it had not been."""
        while self.found and self.found[-1].step > step:
            self.found.pop()

    def first(self, target: float) -> Low | None:
        """The first evaluation at or below `target`; None if there is none."""
        return next((low for low in self.found if low.loss <= target), None)


@dataclass(slots=True)
class Rank:
    """What is known of a rank from its own file; changed in place, for it changes once a second."""

    pid: int = 0
    start_ticks: int = 0
    attempt: int = 0
    """The last attempt that it joined."""
    joined_at_ns: int = 0
    timed_step: int | None = None
    """The step of the last `StepTimed`, and its figures."""
    own_ns: int = 0
    wait_ns: int = 0
    digested_step: int | None = None
    """The step of the last `StateDigested`, and its digests by component."""
    digests: Mapping[str, str] = field(default_factory=dict)
    local_rank: int | None = None
    node: str = ""
    gpu_uuid: str = ""
    """Where it runs, as it joined."""


@dataclass(slots=True)
class Helper:
    """A process that serves the job, and how often another took its place."""

    restarts: int = 0
    reason: str = ""
    """What the last one died of."""

    def restart(self, reason: str) -> None:
        """There is another."""
        self.restarts += 1
        self.reason = reason
