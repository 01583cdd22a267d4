"""The checks, by name: what each looks at, and when it passes. The table is the order in which they run."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from harness.events import GroupFormed, SaveUnblocked, Tier
from harness.journal import read
from harness.rundir import RunDir
from harness.verify import final_digest, verify
from launch.acceptance.bench import Bench, RunError

OVERHEAD_LIMIT = 1.02
"""What the harness may cost with copies to memory at the interval that it chooses."""
BACK_WITHIN_S = 5.0
"""How soon a job is back on GPUs: contexts and communicators are made anew."""


class Outcome(StrEnum):
    """How a check ended."""

    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a check, why, and on which figures that rests."""

    outcome: Outcome
    reason: str
    figures: Mapping[str, Any] = field(default_factory=dict)


def exactness(bench: Bench) -> Verdict:
    """A run under kills ends in the state of its twin without, bit for bit."""
    judged = verify(bench.broken().path, bench.twin().path)
    digest = final_digest(read(bench.broken()))
    return _judged(judged.exact, judged.detail, {"final_digest": digest})


def kills(bench: Bench) -> Verdict:
    """Every kill is come back from at the first attempt."""
    told = bench.report(bench.broken())
    struck = sum(fault["state"] == "confirmed" for fault in told["faults"])
    back, burnt = told["restart_since_fault_s"], told["burnt_restarts"]
    good = 0 < struck == back["count"] and burnt == 0 and told["outcome"] == "finished"
    if bench.device == "cuda" and good:
        good = back["median"] <= BACK_WITHIN_S
    reason = f"{struck} of {bench.size.kills} kills struck, {back['count']} come back from, {burnt} restarts burnt"
    tiers = sorted({one["tier"] for one in told["restart_records"]})
    return _judged(good, reason, {"back_s": back, "tiers": tiers})


def group(bench: Bench) -> Verdict:
    """Each attempt forms its group anew (NCCL on GPUs), whichever rank was killed."""
    run = bench.broken()
    told = bench.report(run)
    formed = {it.attempt for it in read(run) if isinstance(it.event, GroupFormed)}
    killed = sorted({one["rank"] for one in told["restart_records"] if one["rank"] is not None})
    good = len(formed) == told["attempts"] > 1
    reason = f"{told['attempts']} attempts, {len(formed)} groups; ranks killed: {killed}"
    return _judged(good, reason, {"group_s": told["restart_s"]["phases"]["group"]})


def overlap(bench: Bench) -> Verdict:
    """Copies beside the next step hold training up less than copies at once, and copy the same."""
    blocking, beside = _stall_ms(bench, bench.twin()), _stall_ms(bench, bench.overlapped())
    digests = {final_digest(read(run)) for run in (bench.twin(), bench.overlapped())}
    figures = {"blocking_ms": blocking, "beside_ms": beside}
    if len(digests) != 1 or None in digests:
        return Verdict(Outcome.FAIL, "the copies changed the numbers", figures)
    if blocking is None or beside is None:
        return Verdict(Outcome.FAIL, "no state was copied to memory", figures)
    reason = (
        f"a copy holds up training {beside:.2f} ms beside the next step, {blocking:.2f} ms at once"
    )
    return _judged(bench.device != "cuda" or beside < blocking, reason, figures)


def overhead(bench: Bench) -> Verdict:
    """The loop with the harness beside the same loop without, in turn."""
    pairs = [
        (bench.step_ms(is_bare=True, turn=turn), bench.step_ms(is_bare=False, turn=turn))
        for turn in range(bench.size.turns)
    ]
    bare, ours = (statistics.median(side) for side in zip(*pairs, strict=True))
    figures = {"bare_ms": bare, "ours_ms": ours, "ratio": round(ours / bare, 4)}
    if bench.device != "cuda":
        return Verdict(Outcome.PASS, "measured; a job this small has no limit", figures)
    reason = f"{ours / bare:.3f} of the loop without; at most {OVERHEAD_LIMIT}"
    return _judged(ours / bare <= OVERHEAD_LIMIT, reason, figures)


CHECKS: Mapping[str, Callable[[Bench], Verdict]] = {
    "exactness": exactness,
    "kills": kills,
    "group": group,
    "overlap": overlap,
    "overhead": overhead,
}


def judge(name: str, bench: Bench) -> Verdict:
    """The verdict of one check; a run that did not end well fails it, and time that is over skips it."""
    if bench.left_s() <= 0:
        return Verdict(Outcome.SKIPPED, "time was over before it began")
    try:
        return CHECKS[name](bench)
    except RunError as error:
        return Verdict(Outcome.FAIL, str(error))


def _judged(good: bool, reason: str, figures: Mapping[str, Any]) -> Verdict:
    return Verdict(Outcome.PASS if good else Outcome.FAIL, reason, figures)


def _stall_ms(bench: Bench, run: RunDir) -> float | None:
    """What a copy to memory held up training, in the mean."""
    copies = sum(
        isinstance(it.event, SaveUnblocked) and it.event.tier is Tier.MEMORY for it in read(run)
    )
    stall_s: float = bench.report(run)["state_seconds"]["save_stall"]
    return 1e3 * stall_s / copies if copies else None
