"""The checks, by name: what each looks at, and when it passes. The table is the order in which they run."""

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from harness.events import Entry, GroupFormed, SaveStarted, StepFinished, Tier
from harness.journal import read
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
    UNRESOLVED = "unresolved"
    """What was measured may lie on either side of the limit."""


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
    blocking, beside = held_up_ms(read(bench.twin())), held_up_ms(read(bench.overlapped()))
    digests = {final_digest(read(run)) for run in (bench.twin(), bench.overlapped())}
    figures = {"blocking_ms": blocking, "beside_ms": beside}
    if len(digests) != 1 or None in digests:
        return Verdict(Outcome.FAIL, "the copies changed the numbers", figures)
    if blocking is None or beside is None:
        return Verdict(Outcome.FAIL, "there are not both steps with a copy and without", figures)
    reason = (
        f"a copy holds up training {beside:.2f} ms beside the next step, {blocking:.2f} ms at once"
    )
    return _judged(bench.device != "cuda" or beside < blocking, reason, figures)


def overhead(bench: Bench) -> Verdict:
    """The loop with the harness beside the same loop without, and that one beside itself."""
    bare: list[float] = []
    ours: list[float] = []
    for is_bare in (True, False, False, True):  # what drifts meets both sides alike
        side = bare if is_bare else ours
        side.append(bench.step_ms(is_bare=is_bare, turn=len(side)))
    bare_ms, ours_ms = statistics.mean(bare), statistics.mean(ours)
    ratio, noise = ours_ms / bare_ms, max(bare) / min(bare)
    figures = {
        "bare_ms": bare_ms,
        "ours_ms": ours_ms,
        "ratio": round(ratio, 4),
        "noise": round(noise, 4),
    }
    if bench.device != "cuda":
        return Verdict(Outcome.PASS, "measured; a job this small has no limit", figures)
    reason = (
        f"{ratio:.3f} of the loop without, which is off by {noise:.3f} beside itself;"
        f" at most {OVERHEAD_LIMIT}"
    )
    return Verdict(against(OVERHEAD_LIMIT, ratio, noise), reason, figures)


CHECKS: Mapping[str, Callable[[Bench], Verdict]] = {
    "exactness": exactness,
    "kills": kills,
    "group": group,
    "overlap": overlap,
    "overhead": overhead,
}


def judge(name: str, bench: Bench) -> Verdict:
    """The verdict of one check; time that is over skips it.

    A run that did not end well fails it, and so does a file that cannot be read or written.
    """
    if bench.left_s() <= 0:
        return Verdict(Outcome.SKIPPED, "time was over before it began")
    try:
        return CHECKS[name](bench)
    except (RunError, OSError) as error:
        return Verdict(Outcome.FAIL, str(error))


def held_up_ms(entries: Iterable[Entry]) -> float | None:
    """How much longer a step takes that holds a copy to memory than one without a save, in the median.

    From the end of a step to that of the next, so that a copy which the device does later counts in
    the step that waits for it. None where there are no steps of one kind.
    """
    with_ns: list[int] = []
    without_ns: list[int] = []
    ended_ns: int | None = None
    saved: set[Tier] = set()
    for it in entries:
        if isinstance(it.event, SaveStarted):
            saved.add(it.event.tier)
        elif isinstance(it.event, StepFinished):
            if ended_ns is not None and Tier.STORAGE not in saved:
                (with_ns if saved else without_ns).append(it.at_ns - ended_ns)
            ended_ns, saved = it.at_ns, set()
    if not (with_ns and without_ns):
        return None
    return (statistics.median(with_ns) - statistics.median(without_ns)) / 1e6


def against(limit: float, ratio: float, noise: float) -> Outcome:
    """Whether `ratio` keeps to its limit, on a machine where 1 may come out as `noise` (at least 1)."""
    if ratio * noise <= limit:
        return Outcome.PASS
    return Outcome.FAIL if ratio / noise > limit else Outcome.UNRESOLVED


def _judged(good: bool, reason: str, figures: Mapping[str, Any]) -> Verdict:
    return Verdict(Outcome.PASS if good else Outcome.FAIL, reason, figures)
