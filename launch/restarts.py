"""Whether a job that failed is started again. Decides, from the history of this launcher's life.

A budget of restarts within a time window is for accidents. A mistake in the program fails the same
way each time, and a job that gets nowhere will get nowhere: both end sooner than the budget does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.events import Cause

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Failure:
    """How one attempt ended."""

    attempt: int
    at_ns: int
    cause: Cause
    signature: str
    """Equal for two failures that look like the same mistake; empty where chance is to blame."""
    lasted_ns: int
    began: bool | None
    """It finished a step of its own; None if nobody can tell, as in a script without the library."""
    step: int | None
    """Steps finished when it ended; None if nobody can tell."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is tried."""

    restarts: int
    """Restarts allowed within any window …"""
    window_ns: int
    """… of this length."""
    same_starts: int = 2
    """Attempts that end the same way before their first step, until no more are made."""
    start_ns: int = 60 * NS
    """Where nobody can tell, an attempt that lasted this long has begun."""
    same_steps: int = 3
    """Attempts that end the same way at the same step, until no more are made."""
    fruitless: int = 10
    """Attempts in a row that do not get past the best step so far, until no more are made."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about the last failure."""

    restart: bool
    reason: str


def decide(history: Sequence[Failure], now_ns: int, limits: Limits) -> Decision:
    """Whether to start again after the failures so far, the last of which just happened."""
    reason = (
        _cannot_start(history, limits)
        or _same_step(history, limits)
        or _fruitless(history, limits)
        or _spent(history, now_ns, limits)
    )
    if reason:
        return Decision(False, reason)
    used = _restarts_within(history, now_ns, limits)
    window_s = limits.window_ns / NS
    return Decision(True, f"restart {used + 1} of {limits.restarts} within {window_s:g} s")


def _cannot_start(history: Sequence[Failure], limits: Limits) -> str:
    last = _same(history, limits.same_starts)
    if not last or any(_has_begun(failure, limits) for failure in last):
        return ""
    return f"it cannot start: {len(last)} attempts ended before a step with {last[0].signature}"


def _same_step(history: Sequence[Failure], limits: Limits) -> str:
    last = _same(history, limits.same_steps)
    if not last or last[0].step is None or len({failure.step for failure in last}) > 1:
        return ""
    return (
        f"same step, no progress: {len(last)} attempts ended after step {last[0].step}"
        f" with {last[0].signature}"
    )


def _fruitless(history: Sequence[Failure], limits: Limits) -> str:
    best, in_a_row = -1, 0
    for failure in history:
        if failure.began and failure.step is not None and failure.step > best:
            best, in_a_row = failure.step, 0
        elif failure.began is not None:
            in_a_row += 1
    if in_a_row < limits.fruitless:
        return ""
    got = f"past step {best}" if best >= 0 else "to a first step"
    return f"no progress: {in_a_row} attempts in a row did not get {got}"


def _spent(history: Sequence[Failure], now_ns: int, limits: Limits) -> str:
    used = _restarts_within(history, now_ns, limits)
    if used < limits.restarts:
        return ""
    if limits.restarts == 0:
        return "no restarts are allowed (--max-restarts 0)"
    return f"all {limits.restarts} restarts within {limits.window_ns / NS:g} s are used up"


def _restarts_within(history: Sequence[Failure], now_ns: int, limits: Limits) -> int:
    """Each failure before the last one was followed by a restart."""
    return sum(failure.at_ns > now_ns - limits.window_ns for failure in history[:-1])


def _has_begun(failure: Failure, limits: Limits) -> bool:
    return failure.lasted_ns >= limits.start_ns if failure.began is None else failure.began


def _same(history: Sequence[Failure], count: int) -> Sequence[Failure]:
    """The last `count` failures if they look like one mistake, else none."""
    last = history[-count:]
    signatures = {failure.signature for failure in last}
    return last if len(last) == count and len(signatures) == 1 and "" not in signatures else ()
