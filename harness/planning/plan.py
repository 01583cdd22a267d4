"""The plan: for each size what is to be expected, what is lost by cause, and what would help. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.planner import Expected, Job, Needs, expected, goodput, goodput_sd, needs
from harness.planning.asked import Asked
from harness.planning.levers import Lever, levers
from harness.theory import best_interval_s

DAY_H = 24.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a job of one size will reach."""

    job: Job
    expected: Expected
    sd: float
    """Of the goodput of one run."""
    goodput_within: tuple[float, float] | None
    """For what the failure rate is known to; None where it was given."""
    levers: Sequence[Lever]
    needs: Needs | None


@dataclass(frozen=True, slots=True)
class Row:
    """One size."""

    gpus: int
    mtbf_s: float | None
    save_s: float | None
    interval_s: float | None
    """The best one. It does not depend on the restart."""
    outlook: Outlook | None
    """None where an input is missing."""
    calendar_s: float | None
    """The whole computation without any interruption."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All sizes."""

    asked: Asked
    missing: Sequence[str]
    """The flags without which there is no goodput."""
    rows: Sequence[Row]


def plan(asked: Asked) -> Plan:
    """The plan. Raises `ValueError` for a job that could never end a save."""
    missing = asked.missing()
    return Plan(asked, missing, [_row(asked, gpus, not missing) for gpus in asked.sizes])


def lost_per_day(row: Row) -> Mapping[str, float]:
    """GPU-hours that are paid and not kept, by cause."""
    assert row.outlook is not None
    told = row.outlook.expected
    paid = DAY_H * row.gpus
    shares = {
        "saves": told.shares.checkpoint,
        "lost work": told.shares.lost,
        "restarts": told.shares.restart,
    }
    if told.slowdown > 1:
        shares["waiting"] = told.waiting
    return {cause: share * paid for cause, share in shares.items()}


def _row(asked: Asked, gpus: int, is_whole: bool) -> Row:
    outlook = _outlook(asked, gpus) if is_whole else None
    mtbf_s = None if asked.rate is None else asked.rate.job_s(gpus)
    save_s = asked.blocks_s(gpus)
    interval_s = None if outlook is None else outlook.expected.interval_s
    if outlook is None and mtbf_s is not None and save_s is not None:
        interval_s = best_interval_s(save_s, mtbf_s)
    calendar_s = None if asked.training is None else asked.training.duration_s(gpus)
    return Row(gpus, mtbf_s, save_s, interval_s, outlook, calendar_s)


def _outlook(asked: Asked, gpus: int) -> Outlook:
    job = asked.job(gpus)
    return Outlook(
        job=job,
        expected=expected(job),
        sd=goodput_sd(job, asked.horizon_s),
        goodput_within=_within(asked, gpus, job),
        levers=levers(job, asked.means(gpus)),
        needs=None if asked.target is None else needs(job, asked.target),
    )


def _within(asked: Asked, gpus: int, job: Job) -> tuple[float, float] | None:
    """Goodput at both ends of what the failure rate is known to."""
    bounds = None if asked.rate is None else asked.rate.within_s(gpus)
    if bounds is None:
        return None
    least_s, most_s = bounds
    best = 1.0 if most_s is None else _at(job, most_s)
    return _at(job, least_s), best


def _at(job: Job, mtbf_s: float) -> float:
    share = goodput(replace(job, mtbf_s=mtbf_s))
    return share if math.isfinite(share) else 0.0
