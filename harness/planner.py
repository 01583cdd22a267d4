"""What a job is expected to reach, and where its time goes. Pure: closed forms, no clock.

One tier is exact (`theory.shares`). A fast tier beside it is taken as a job within the job: failures
that it serves cost what they cost a job of that tier alone, and all others meet what is left.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from harness import theory
from harness.quantities import checked
from harness.theory import Shares

_NEXT_TO_NONE = 1e-9
"""A share of the failures that makes no difference."""


@dataclass(frozen=True, slots=True)
class FastTier:
    """A quick place to save to, and the share of the failures after which it still has its copy."""

    save_s: float
    restart_s: float
    share: float

    def __post_init__(self) -> None:
        checked("memory tier's save_s", self.save_s, above=0)
        checked("memory tier's restart_s", self.restart_s, at_least=0)
        checked("memory tier's share", self.share, at_least=0, at_most=1)


@dataclass(frozen=True, slots=True)
class Job:
    """A job that saves and fails."""

    mtbf_s: float
    """Of the whole job, while it is up."""
    save_s: float
    """Training is blocked for so long."""
    restart_s: float
    commit_s: float = 0.0
    """From the end of that until the save is durable: work that a failure loses on top."""
    fast: FastTier | None = None
    slowdown: float = 1.0
    """A step, waiting for the slowest device, over a device's own mean."""

    def __post_init__(self) -> None:
        checked("mtbf_s", self.mtbf_s, above=0)
        checked("save_s", self.save_s, above=0)
        checked("restart_s", self.restart_s, at_least=0)
        checked("commit_s", self.commit_s, at_least=0)
        checked("slowdown", self.slowdown, at_least=1)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a job will do in the long run, if it saves as often as is best."""

    interval_s: float
    alike_s: tuple[float, float] | None
    """The intervals that cost less than `theory.FLAT_POINTS`; None where goodput is next to nothing."""
    fast_interval_s: float | None
    shares: Shares
    slowdown: float

    @property
    def goodput(self) -> float:
        """Share of the time that is kept work."""
        return self.shares.work

    @property
    def effective(self) -> float:
        """Goodput, less the waiting for slow devices within the steps."""
        return self.shares.work / self.slowdown

    @property
    def waiting(self) -> float:
        """Share of the time that is waiting for slow devices, within the steps that are kept."""
        return self.shares.work - self.effective


def expected(job: Job) -> Expected:
    """What `job` will do."""
    durable = _durable(job)
    interval_s, shares = _alone(durable)
    fast = _fast(job)
    fast_interval_s = None
    if fast is not None:
        fast_interval_s, outer = _alone(fast)
        shares = _within(outer, shares)
    return Expected(interval_s, _alike_s(durable), fast_interval_s, shares, job.slowdown)


def goodput(job: Job) -> float:
    """The share of the time that is kept work, at the best interval."""
    fast = _fast(job)
    within = 1.0 if fast is None else _alone(fast)[1].work
    return within * _alone(_durable(job))[1].work


def goodput_sd(job: Job, horizon_s: float) -> float:
    """Standard deviation of the goodput of one run of `horizon_s`."""
    tiers = [tier for tier in (_durable(job), _fast(job)) if tier is not None]
    relative = [_sd(tier, horizon_s) / _alone(tier)[1].work for tier in tiers]
    return goodput(job) * math.hypot(*relative)


# ── what would have to be true ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Needs:
    """Each alone, with all else as it is; None where no value would do."""

    restart_s: float | None
    """At most."""
    save_s: float | None
    """At most."""
    mtbf_s: float | None
    """At least."""


def needs(job: Job, target: float) -> Needs:
    """What would have to be true for a goodput of `target`."""
    checked("--target", target, above=0, at_most=1)

    def enough(changed: Job) -> bool:
        return goodput(changed) >= target

    return Needs(
        restart_s=_most(job.restart_s, 0.0, lambda value: enough(replace(job, restart_s=value))),
        save_s=_most(
            job.save_s, job.save_s * 1e-9, lambda value: enough(replace(job, save_s=value))
        ),
        mtbf_s=_least(job.mtbf_s, lambda value: enough(replace(job, mtbf_s=value))),
    )


def _most(now: float, least: float, enough: Callable[[float], bool]) -> float | None:
    """The largest value that is still `enough`, between `least` and beyond `now`; None if none is."""
    if not enough(least):
        return None
    beyond = max(now, 1.0)
    while enough(beyond):
        beyond *= 2
    return _bisected(least, beyond, enough)


def _least(now: float, enough: Callable[[float], bool]) -> float | None:
    """The smallest value that is `enough`; None if not even a million times as much as `now` is."""
    beyond = now * 1e6
    if not enough(beyond):
        return None
    low = now
    while enough(low):
        low /= 2
    return _bisected(beyond, low, enough)


def _bisected(good: float, bad: float, enough: Callable[[float], bool]) -> float:
    for _ in range(100):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if enough(middle) else (good, middle)
    return good


# ── one tier ────────────────────────────────────────────────────────────────────────────────────


def _durable(job: Job) -> Job:
    """The job of the failures that the fast tier does not serve; all of them if there is none."""
    rest = 1.0 if job.fast is None else 1 - job.fast.share
    return replace(job, fast=None, mtbf_s=job.mtbf_s / max(rest, _NEXT_TO_NONE))


def _fast(job: Job) -> Job | None:
    """The job of the failures that the fast tier serves."""
    if job.fast is None or job.fast.share < _NEXT_TO_NONE:
        return None
    return Job(job.mtbf_s / job.fast.share, job.fast.save_s, job.fast.restart_s)


def _alone(job: Job) -> tuple[float, Shares]:
    """The best interval of a job of one tier, and where its time goes.

    A save that is durable only later costs its delay in lost work at each failure, and a save
    cannot begin before the one before it has ended.
    """
    interval_s = max(theory.best_interval_s(job.save_s, job.mtbf_s), job.commit_s)
    shares = theory.shares(interval_s, job.save_s, job.restart_s + job.commit_s, job.mtbf_s)
    late = job.commit_s / (job.mtbf_s + job.restart_s + job.commit_s)
    return interval_s, replace(shares, lost=shares.lost + late, restart=shares.restart - late)


def _within(outer: Shares, inner: Shares) -> Shares:
    """A job whose work is the whole time of another."""
    return Shares(
        work=outer.work * inner.work,
        checkpoint=outer.checkpoint + outer.work * inner.checkpoint,
        lost=outer.lost + outer.work * inner.lost,
        restart=outer.restart + outer.work * inner.restart,
    )


def _sd(job: Job, horizon_s: float) -> float:
    interval_s, _ = _alone(job)
    away_s = job.restart_s + job.commit_s
    return theory.goodput_sd(interval_s, job.save_s, away_s, job.mtbf_s, horizon_s)


def _alike_s(job: Job) -> tuple[float, float] | None:
    away_s = job.restart_s + job.commit_s
    if theory.best_goodput(job.save_s, away_s, job.mtbf_s) <= 2 * theory.FLAT_POINTS:
        return None
    low_s, high_s = theory.intervals_within_s(job.save_s, away_s, job.mtbf_s, theory.FLAT_POINTS)
    return max(low_s, job.commit_s), max(high_s, job.commit_s)
