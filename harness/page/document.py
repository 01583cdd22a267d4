"""Everything that the page shows, as one JSON document: pure, from what a scrape sees too.

Durations are in seconds, instants in Unix time, and what is not known is null, never zero.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from harness import metrics
from harness.account import Account
from harness.page.window import WINDOWS_S, shown, strip
from harness.phases import Phase
from harness.present import Present
from harness.report.health import Line, lines
from harness.report.model import Report
from harness.report.spread import number, seconds
from harness.report.tell import tell
from harness.samples import DRAW
from harness.tallies import Reading
from harness.timeline import Timeline

SCHEMA = 1
LISTED = 20
"""The newest so many restarts, faults and rejections; all of them are in the report."""
LISTED_RANKS = 256
"""Beyond these, ranks are listed if they are down, and the latest of the others."""


def document(now: Present, at_ns: int, window_s: int = WINDOWS_S[1]) -> dict[str, Any]:
    """The state of a run at `at_ns`, with a strip of its last `window_s`."""
    account = now.account
    told = tell(Timeline(shown(now, at_ns), (), (), account), is_led=now.is_led, run_id=now.run_id)
    failures_ns = [one.failed_at_ns for one in told.comebacks]
    return {
        "schema": SCHEMA,
        "at_s": seconds(at_ns),
        "run": _run(now, told),
        "progress": _progress(told, account),
        "goodput": _goodput(told),
        "strip": strip(told.segments, failures_ns, window_s),
        "loss": _losses(account),
        "restarts": _restarts(told, now),
        "faults": _faults(told),
        "checkpoints": list(_checkpoints(account, at_ns)),
        "rejected": list(told.checkpoints.rejected[-LISTED:]),
        "health": _health(told),
        "slow": told.slowness.lines(told.world_size),
        "ranks": _ranks(now),
        "helpers": [
            {"name": name, "restarts": one.restarts, "reason": one.reason}
            for name, one in told.helpers.items()
        ],
    }


def _run(now: Present, told: Report) -> dict[str, Any]:
    start_ns = now.account.start_ns
    return {
        "name": now.job_name,
        "id": told.run_id,
        "outcome": told.standing.value,
        "reason": told.reason,
        "phase": now.phase.value,
        "ranks": told.world_size,
        "attempts": told.attempts,
        "launches": told.lives,
        "manual_interventions": told.interventions,
        "started_s": None if start_ns is None else seconds(start_ns),
        "wall_s": seconds(told.segments[-1].end_ns - start_ns)
        if told.segments and start_ns is not None
        else 0.0,
    }


def _progress(told: Report, account: Account) -> dict[str, Any]:
    worked_s = seconds(told.split.state_ns[Phase.WORK])
    return {
        "step": told.step,
        "total_steps": account.total_steps,
        "lost_steps": told.lost_steps,
        "redone_steps": told.redone_steps,
        "tokens": told.tokens,
        "tokens_per_work_second": told.tokens / worked_s if told.tokens and worked_s else None,
    }


def _goodput(told: Report) -> dict[str, Any]:
    of = told.split
    return {
        "ratio": of.goodput if of.wall_ns else None,
        "failures": sum(1 for _ in told.comebacks),
        "phases_s": {kind: seconds(ns) for kind, ns in of.classes_ns().items()},
        "kinds_s": {kind: seconds(ns) for kind, ns in of.coarse_ns().items()},
    }


def _losses(account: Account) -> dict[str, Any]:
    return {
        "last": None if account.loss is None else number(account.loss),
        "training": _points(account.recent.losses.readings),
        "validation": _points(account.validations),
    }


def _points(readings: Sequence[Reading]) -> list[list[Any]]:
    return [[one.step, number(one.value)] for one in readings]


def _restarts(told: Report, now: Present) -> dict[str, Any]:
    return {
        "failures": sum(now.account.recovery.failures.values()),
        "count": told.restarts,
        "burnt": told.burnt,
        "median_s": seconds(told.durations.median_ns),
        "records": [
            {**one.to_json(), "at_s": seconds(one.failed_at_ns)}
            for one in reversed(told.comebacks[-LISTED:])
        ],
    }


def _faults(told: Report) -> dict[str, Any]:
    return {
        "count": len(told.faults),
        "records": [one.to_json() for one in reversed(told.faults[-LISTED:])],
    }


def _checkpoints(account: Account, at_ns: int) -> Iterator[dict[str, Any]]:
    for tier, saves in account.checkpoints.saves.items():
        under_way = [one for one in account.checkpoints.under_way if one.tier is tier]
        chosen = account.intervals.get(tier)
        yield {
            "tier": tier.value,
            "committed": saves.committed,
            "failed": saves.failed,
            "last_step": saves.last_step,
            "age_s": seconds(max(0, at_ns - saves.last_at_ns)) if saves.committed else None,
            "last_bytes": saves.last_bytes if saves.committed else None,
            "last_stall_s": seconds(saves.stalls.last_ns),
            "last_commit_s": seconds(saves.commits.last_ns),
            "under_way": [one.step for one in under_way if one.attempt == account.attempt],
            "every_steps": None if chosen is None else chosen.steps,
            "every_s": None if chosen is None else number(chosen.seconds),
            "why": "" if chosen is None else chosen.reason,
        }


def _health(told: Report) -> list[dict[str, Any]]:
    """In words, as a report has them."""
    found = [Line(text) for text in told.throughput.lines()] + list(lines(told.findings))
    return [{"text": one.text, "bad": one.is_bad} for one in found]


def _ranks(now: Present) -> dict[str, Any]:
    told = list(_each_rank(now))
    listed = told
    if len(told) > LISTED_RANKS:
        latest = sorted(
            told, key=lambda one: (one["up"], one["named"] is None, -(one["delay_s"] or 0.0))
        )
        listed = sorted(latest[:LISTED_RANKS], key=lambda one: int(one["rank"]))
    return {"count": len(told), "up": sum(one["up"] for one in told), "listed": listed}


def _each_rank(now: Present) -> Iterator[dict[str, Any]]:
    delays_s = DRAW[metrics.STRAGGLER_DELAY.name](now)
    open_now = [one for one in now.account.stragglers.episodes if one.until_ns is None]
    named = {one.rank: one.lag.value for one in open_now}
    for rank, up in enumerate(now.up):
        slot, delay_s = now.slots.get(rank), delays_s.get((str(rank),))
        yield {
            "rank": rank,
            "up": bool(up),
            "step": None if slot is None else slot.step,
            "doing": slot.mark.name.lower().replace("_", " ") if slot and up else None,
            "delay_s": delay_s if isinstance(delay_s, float) else None,
            "named": named.get(rank),
        }
