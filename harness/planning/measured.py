"""What runs say of failures, saves and restarts, with causes kept apart. Pure: timelines in, figures out.

A crash loop (the same cause at the same step again) is one incident. A preemption is nobody's failure. The
end of a run is not one either: it only ends the time in which failures could have been seen.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.events import Cause, Tier
from harness.goodput import split
from harness.histogram import Histogram
from harness.recovery import FROM_OUTSIDE, UNKNOWN_CAUSE, Restart
from harness.reliability import up_s
from harness.saves import Saves
from harness.theory import FailureRate, failure_rate
from harness.timeline import Timeline

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Incidents:
    """The failures of one cause."""

    cause: str
    failures: int
    incidents: int
    """The same with each crash loop counted once."""
    injected: int
    """Of the failures: those that a plan of faults led to."""
    rate: FailureRate
    """Of the incidents, over the up time of the job."""

    @property
    def is_preemption(self) -> bool:
        """Somebody wanted the machine; nothing broke."""
        return self.cause == Cause.PREEMPTION


@dataclass(frozen=True, slots=True)
class Seen:
    """What some runs of a job say, taken together."""

    runs: int
    wall_s: float
    up_s: float
    device_s: float
    """Up time times the ranks that were up."""
    devices: int
    """Ranks of the largest run."""
    relaunches: int
    """Times that somebody launched a run again; why its launcher had ended is not known."""
    causes: Sequence[Incidents]
    save_s: float | None
    """Training was blocked for so long by a save, in the mean."""
    commit_s: float | None
    """From there until the save was durable."""
    restart_s: float | None
    """From a failure to the first step after it, in the mean; from the last step before it for a hang."""
    state_bytes: int | None
    """Of the last checkpoint."""

    @property
    def incidents(self) -> int:
        """Without preemptions."""
        return sum(one.incidents for one in self.causes if not one.is_preemption)

    @property
    def rate(self) -> FailureRate:
        """Of all incidents but preemptions, over the up time of every single device."""
        return failure_rate(self.incidents, self.device_s)

    @property
    def job_rate(self) -> FailureRate:
        """The same over the up time of the job."""
        return failure_rate(self.incidents, self.up_s)


def seen(runs: Mapping[str, Timeline]) -> Seen:
    """What the runs say, each under its name. Raises `ValueError` where one says nothing at all."""
    ups_s = {name: up_s(of.account) for name, of in runs.items()}
    for name, trained_s in ups_s.items():
        if trained_s <= 0:
            raise ValueError(f"{name} has no time of training in it: nothing can be counted there")
    accounts = [of.account for of in runs.values()]
    all_up_s = sum(ups_s.values())
    saves = [_tier(of) for of in runs.values()]
    save_s = _mean_s(one.stalls for one in saves)
    durable_s = _mean_s(one.commits for one in saves)
    return Seen(
        runs=len(runs),
        wall_s=sum(split(of).wall_ns for of in runs.values()) / _NS,
        up_s=all_up_s,
        device_s=sum(ups_s[name] * max(1, of.account.world_size) for name, of in runs.items()),
        devices=max(max(1, one.world_size) for one in accounts),
        relaunches=sum(one.interventions for one in accounts),
        causes=_causes([of.account.recovery.records for of in runs.values()], all_up_s),
        save_s=save_s,
        commit_s=None if save_s is None or durable_s is None else max(0.0, durable_s - save_s),
        restart_s=_restart_s(one for of in accounts for one in of.recovery.records),
        state_bytes=max((one.last_bytes for one in saves), default=0) or None,
    )


def _tier(of: Timeline) -> Saves:
    """The saves to storage; those to memory where there are no others."""
    saves = of.account.checkpoints.saves
    return saves.get(Tier.STORAGE) or saves.get(Tier.MEMORY) or Saves()


def _mean_s(histograms: Iterable[Histogram]) -> float | None:
    held = list(histograms)
    count = sum(one.count for one in held)
    return sum(one.total_ns for one in held) / count / _NS if count else None


def _restart_s(records: Iterable[Restart]) -> float | None:
    back = [_away_ns(one) for one in records if one.first_step_at_ns is not None]
    return sum(back) / len(back) / _NS if back else None


def _away_ns(one: Restart) -> int:
    assert one.first_step_at_ns is not None
    noticed_late = one.cause is Cause.HANG and one.last_step_at_ns is not None
    since_ns = one.last_step_at_ns if noticed_late else one.failed_at_ns
    return one.first_step_at_ns - (since_ns or 0)


def _causes(runs: Sequence[Sequence[Restart]], up_s: float) -> list[Incidents]:
    """By cause, the most frequent incident first."""
    failures: dict[str, int] = {}
    injected: dict[str, int] = {}
    incidents: dict[str, int] = {}
    for records in runs:
        at_steps: set[tuple[str, int]] = set()
        for one in records:
            cause = one.cause or UNKNOWN_CAUSE
            failures[cause] = failures.get(cause, 0) + 1
            injected[cause] = injected.get(cause, 0) + bool(one.faults)
            again = (cause, one.last_step) in at_steps and cause not in FROM_OUTSIDE
            incidents[cause] = incidents.get(cause, 0) + (not again)
            at_steps.add((cause, one.last_step))
    told = [
        Incidents(str(cause), count, incidents[cause], injected[cause], FailureRate(n, up_s))
        for cause, count in failures.items()
        for n in (incidents[cause],)
    ]
    return sorted(told, key=lambda one: (-one.incidents, one.cause))
