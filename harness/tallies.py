"""What is known of ranks, readings and helpers. All of it bounded, all of it from the log."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure that training read off after `step`."""

    step: int
    value: float


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
