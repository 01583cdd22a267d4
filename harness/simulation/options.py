"""What a simulated job may meet beyond the textbook loop. All of it is off by default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from harness.fleet import expected_step
from harness.quantities import checked
from harness.recovery import Stage
from harness.simulation.laws import Constant, Law


class Exposure(StrEnum):
    """When failures can strike."""

    TRAINING = "training"
    """While the job trains or saves; the clock starts anew when it is back."""
    ALWAYS = "always"
    """At any time: a failure during a restart begins another restart."""


NEVER = Constant(0.0)
"""Takes no time."""


@dataclass(frozen=True, slots=True)
class FastTier:
    """A place to save to that is quick, and that not every failure leaves standing."""

    interval_s: float
    save_s: float
    restart_s: float
    share: float
    """Of the failures: those after which it still holds its copy (own node 0.23-0.45, a peer's 0.8)."""

    def __post_init__(self) -> None:
        checked("fast interval_s", self.interval_s, above=0)
        checked("fast save_s", self.save_s, at_least=0)
        checked("fast restart_s", self.restart_s, at_least=0)
        checked("fast share", self.share, at_least=0, at_most=1)


@dataclass(frozen=True, slots=True)
class Maintenance:
    """The machines are wanted back from time to time: the job saves, leaves, and starts again."""

    every_s: float
    down_s: float

    def __post_init__(self) -> None:
        checked("maintenance every_s", self.every_s, above=0)
        checked("maintenance down_s", self.down_s, at_least=0)


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Each step waits for the slowest of all devices: noise on every step, and some that stay slow."""

    devices: int
    noise: float = 0.0
    """Standard deviation of the logarithm of a device's own step time."""
    slow_share: float = 0.0
    """Of the devices: those that are slow for a whole attempt."""
    slowdown: float = 1.0
    """Of such a device."""

    def __post_init__(self) -> None:
        checked("devices", self.devices, at_least=1)
        checked("slow share", self.slow_share, at_least=0, at_most=1)
        expected_step(self.devices, 1, self.slowdown, self.noise)

    def slow_devices(self, u: float) -> int:
        """How many devices are slow in an attempt, for the uniform number `u`."""
        mean = self.devices * self.slow_share
        if mean > 100 or self.slow_share == 1:
            return round(mean)  # one more or less of so many makes no difference
        chance = below = (1 - self.slow_share) ** self.devices
        count = 0
        while u >= below and count < self.devices:
            chance *= (self.devices - count) / (count + 1) * self.slow_share / (1 - self.slow_share)
            below += chance
            count += 1
        return count

    def factor(self, slow: int) -> float:
        """How much longer than a device's own mean a step takes, with `slow` slow ones in the job."""
        return expected_step(self.devices - slow, slow, self.slowdown, self.noise)


@dataclass(frozen=True, slots=True)
class Corruption:
    """Wrong numbers that nobody notices for a while; saves made meanwhile are worthless."""

    gap: Law
    """From the moment that training is sound until it is not."""
    lag: Law
    """From then until somebody notices."""


@dataclass(frozen=True, slots=True)
class Spares:
    """Nodes that stand by; a failed one comes back to them when it is repaired."""

    count: int
    repair: Law

    def __post_init__(self) -> None:
        checked("spares", self.count, at_least=0)


@dataclass(frozen=True, slots=True)
class Options:
    """The defaults are the textbook loop."""

    exposure: Exposure = Exposure.TRAINING
    detection: Law = NEVER
    """From a failure until somebody notices it."""
    stages: Mapping[Stage, Law] = field(default_factory=dict)
    """Parts of a restart; where given, they stand in place of the single figure."""
    commit_s: float = 0.0
    """From the end of a save's stall until it is durable; one save is made durable at a time."""
    fast: FastTier | None = None
    maintenance: Maintenance | None = None
    stragglers: Stragglers | None = None
    corruption: Corruption | None = None
    spares: Spares | None = None

    def __post_init__(self) -> None:
        checked("commit_s", self.commit_s, at_least=0)
        if Stage.DETECT in self.stages:
            raise ValueError("detect is no part of a restart: give the detection delay instead")
