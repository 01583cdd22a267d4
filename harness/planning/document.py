"""A plan for programs: one JSON object, all durations in seconds. What is unknown is null."""

from typing import Any

from harness.planning.asked import Rate
from harness.planning.measured import Seen
from harness.planning.plan import Outlook, Plan, Row, lost_per_day

SCHEMA = 1


def to_json(plan: Plan, seen: Seen | None = None) -> dict[str, Any]:
    """The plan, and what it was measured from."""
    return {
        "schema": SCHEMA,
        "missing": list(plan.missing),
        "rate": None if plan.asked.rate is None else _rate(plan.asked.rate),
        "horizon_s": plan.asked.horizon_s,
        "target": plan.asked.target,
        "sizes": [_row(plan, row) for row in plan.rows],
        "measured": None if seen is None else _seen(seen),
    }


def _rate(rate: Rate) -> dict[str, Any]:
    known = rate.known
    return {
        "level": rate.level.value,
        "mtbf_s": None if rate.is_bound else rate.mtbf_s,
        "failures": None if known is None else known.failures,
        "up_s": None if known is None else known.up_s,
        "mtbf_at_least_s": None if known is None else known.mtbf_at_least_s(),
        "mtbf_at_most_s": None if known is None else known.mtbf_at_most_s(),
        "confidence": None if known is None else 0.95,
    }


def _row(plan: Plan, row: Row) -> dict[str, Any]:
    told: dict[str, Any] = {
        "gpus": row.gpus,
        "mtbf_s": row.mtbf_s,
        "save_s": row.save_s,
        "interval_s": row.interval_s,
        "uninterrupted_s": row.calendar_s,
        "goodput": None,
    }
    return told if row.outlook is None else told | _outlook(plan, row, row.outlook)


def _outlook(plan: Plan, row: Row, of: Outlook) -> dict[str, Any]:
    told, price = of.expected, plan.asked.price
    lost = lost_per_day(row)
    return {
        "commit_s": of.job.commit_s,
        "restart_s": of.job.restart_s,
        "interval_as_good_s": None if told.alike_s is None else list(told.alike_s),
        "memory_interval_s": told.fast_interval_s,
        "goodput": told.goodput,
        "goodput_sd": of.sd,
        "goodput_within": None if of.goodput_within is None else list(of.goodput_within),
        "effective": told.effective,
        "lost_gpu_hours_per_day": dict(lost),
        "lost_money_per_day": None if price is None else {k: v * price for k, v in lost.items()},
        "levers": [
            {"name": one.name, "gain": one.gain, "missing": one.missing or None}
            for one in of.levers
        ],
        "needs": None
        if of.needs is None
        else {
            "restart_at_most_s": of.needs.restart_s,
            "save_at_most_s": of.needs.save_s,
            "mtbf_at_least_s": of.needs.mtbf_s,
        },
    }


def _seen(seen: Seen) -> dict[str, Any]:
    return {
        "runs": seen.runs,
        "wall_s": seen.wall_s,
        "up_s": seen.up_s,
        "devices": seen.devices,
        "relaunches": seen.relaunches,
        "save_s": seen.save_s,
        "commit_s": seen.commit_s,
        "restart_s": seen.restart_s,
        "state_bytes": seen.state_bytes,
        "causes": [
            {
                "cause": one.cause,
                "failures": one.failures,
                "incidents": one.incidents,
                "injected": one.injected,
                "mtbf_s": one.rate.mtbf_s,
                "mtbf_at_least_s": one.rate.mtbf_at_least_s(),
                "mtbf_at_most_s": one.rate.mtbf_at_most_s(),
            }
            for one in seen.causes
        ],
    }
