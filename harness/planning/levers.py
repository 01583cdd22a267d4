"""What could be changed about a job, and what each change would bring. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from harness.fleet import expected_step, persistent_slowdown
from harness.planner import Expected, FastTier, Job, expected
from harness.quantities import checked

SLOWEST = 0.001
"""The share of the devices that the last lever removes."""


class Place(StrEnum):
    """Where a copy in memory lies: that decides which failures leave it standing."""

    NODE = "node"
    PEER = "peer"


SERVED = {Place.NODE: 0.23, Place.PEER: 0.8}
"""Of the failures, by the causes of Llama 3 (arXiv 2407.21783, Table 5): a node's own memory serves
software, watchdogs and cables; a copy on another node all but what takes both."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What saving to memory would cost. The defaults are illustrative; whoever prints a figure says so."""

    save_s: float = 3.0
    restart_s: float = 120.0

    def tier(self, place: Place, job: Job) -> FastTier:
        """A tier there, never slower than what the job has."""
        restart_s = min(self.restart_s, job.restart_s)
        return FastTier(min(self.save_s, job.save_s), restart_s, SERVED[place])


@dataclass(frozen=True, slots=True)
class Stragglers:
    """How unequal devices are."""

    noise: float
    """Standard deviation of the logarithm of a device's own step time."""
    slow_share: float = 0.0
    """Of the devices: those that stay slow."""
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        checked("stragglers' noise", self.noise, at_least=0, at_most=2)
        checked("stragglers' slow share", self.slow_share, at_least=0, at_most=1)
        checked("stragglers' slowdown", self.slowdown, at_least=1)

    def without_slowest(self) -> "Stragglers":
        """The slowest devices removed, and ordinary ones in their place."""
        return replace(self, slow_share=max(0.0, self.slow_share - SLOWEST))

    def factor(self, devices: int) -> float:
        """How much longer than a device's own mean a step takes."""
        noisy = expected_step(devices, 0, 1.0, self.noise)
        with_slow = expected_step(max(1, devices - 1), 1, self.slowdown, self.noise)
        some = persistent_slowdown(devices, self.slow_share, 2.0) - 1
        return noisy + (max(noisy, with_slow) - noisy) * some


@dataclass(frozen=True, slots=True)
class Lever:
    """A change."""

    name: str
    gain: float | None
    """In goodput, waiting for slow devices taken off; None where an input is missing."""
    missing: str = ""
    """The flag that would tell."""


@dataclass(frozen=True, slots=True)
class Means:
    """What is known beside the job, for levers that need it."""

    devices: int
    memory: Memory
    writes_block: bool
    """Training waits until everything is written."""
    storage_known: bool
    burst_ratio: float | None
    """The burst rate of the storage over its sustained one."""
    stragglers: Stragglers | None


def levers(job: Job, means: Means) -> list[Lever]:
    """Every lever, in a fixed order."""
    now = expected(job)
    return [
        _lever("halve the restart", now, replace(job, restart_s=job.restart_s / 2)),
        _lever("halve the save", now, replace(job, save_s=job.save_s / 2)),
        *_memory(job, now, means),
        *_storage(job, now, means),
        _slowest(job, now, means),
    ]


def best(of: Sequence[Lever]) -> Lever | None:
    """The one that pays most; None where none pays."""
    paying = [lever for lever in of if lever.gain is not None and lever.gain > 0]
    return max(paying, key=lambda lever: lever.gain or 0.0, default=None)


def _memory(job: Job, now: Expected, means: Means) -> Iterator[Lever]:
    for place in Place:
        name = "memory tier on the node" if place is Place.NODE else "memory tier on a peer"
        tier = means.memory.tier(place, job)
        if job.fast is None or tier.share > job.fast.share:
            yield _lever(name, now, replace(job, fast=tier))


def _storage(job: Job, now: Expected, means: Means) -> Iterator[Lever]:
    if not means.storage_known:
        yield Lever("double the storage", None, "--state and --storage")
        return
    yield _lever("double the storage", now, _faster(job, 2.0, means))
    if means.burst_ratio is not None:
        yield _lever("write at the burst rate", now, _faster(job, means.burst_ratio, means))


def _faster(job: Job, ratio: float, means: Means) -> Job:
    if means.writes_block:
        return replace(job, save_s=job.save_s / ratio)
    return replace(job, commit_s=job.commit_s / ratio)


def _slowest(job: Job, now: Expected, means: Means) -> Lever:
    name = f"remove the slowest {SLOWEST:.1%}"
    if means.stragglers is None:
        return Lever(name, None, "--stragglers")
    factor = means.stragglers.without_slowest().factor(means.devices)
    return _lever(name, now, replace(job, slowdown=factor))


def _lever(name: str, now: Expected, changed: Job) -> Lever:
    return Lever(name, expected(changed).effective - now.effective)
