"""Whether a job that failed is started again, and how soon. Decides, from this launcher's history.

A budget of restarts within a time window is for accidents, another one for preemptions, which say
nothing of the program. A mistake in the program fails the same way each time, and a job that gets
nowhere will get nowhere: both end sooner than a budget does, and are waited between ever longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.events import Cause
from launch import backoff

NS = 1_000_000_000
OUR_OWN = (Cause.HELPER,)
"""What ends an attempt by our fault alone: it draws on no budget."""
SLOWLY_SURE = (Cause.HANG, Cause.OOM)
"""What may be chance twice, wherever it happens."""


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

    @property
    def mistake(self) -> str:
        """What of the program it shows; empty where chance is to blame."""
        return self.signature or (str(self.cause) if self.cause in SLOWLY_SURE else "")

    @property
    def told(self) -> str:
        """`mistake` in one line."""
        first, *more = self.mistake.splitlines()
        return f"{first} …" if more else first


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is tried."""

    restarts: int
    """Restarts after failures allowed within any window …"""
    window_ns: int
    """… of this length …"""
    preemptions: int = 100
    """… and after preemptions, which do not count as failures."""
    same_starts: int = 2
    """Attempts that end the same way before their first step, until no more are made."""
    start_ns: int = 60 * NS
    """Where nobody can tell, an attempt that lasted this long has begun."""
    same_steps: int = 3
    """Attempts that end by a mistake at the same step, until no more are made."""
    fruitless: int = 10
    """Attempts in a row that do not get past the best step so far, until no more are made."""
    first_wait_s: float = 1.0
    """Before the attempt after the second one in a row without progress; it doubles …"""
    most_wait_s: float = 60.0
    """… up to this."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about the last failure."""

    restart: bool
    reason: str
    wait_s: float = 0.0
    """Before the next attempt."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The end of a history: what happened since an attempt last made progress."""

    best: int | None
    """Step that the job has got to; None before any."""
    last_progress: Failure | None
    idle: Sequence[Failure]
    """Those after it, none of which made any."""

    def at(self, place: int | None, limits: Limits) -> list[Failure]:
        """Mistakes at `place`, a step; None is before an attempt's first one."""
        all_of_it = [*([self.last_progress] if self.last_progress else []), *self.idle]
        return [it for it in all_of_it if it.mistake and _place(it, limits) == place]


def decide(history: Sequence[Failure], now_ns: int, limits: Limits) -> Decision:
    """Whether to start again after the failures so far, the last of which just happened."""
    stretch = _stretch(history, limits)
    reason = (
        _cannot_start(history[-1], stretch, limits)
        or _same_step(history[-1], stretch, limits)
        or _fruitless(stretch, limits)
        or _spent(history, now_ns, limits)
    )
    if reason:
        return Decision(False, reason)
    in_a_row = len(stretch.idle)
    wait_s = backoff.wait_s(in_a_row, limits.first_wait_s, limits.most_wait_s)
    soon = f", in {wait_s:g} s: {in_a_row} attempts in a row made no progress" if wait_s else ""
    return Decision(True, _allowance(history, now_ns, limits) + soon, wait_s)


def _stretch(history: Sequence[Failure], limits: Limits) -> _Stretch:
    best, since = None, -1
    for index, failure in enumerate(history):
        if failure.began is None:
            progress = failure.lasted_ns >= limits.start_ns
        else:
            progress = (
                failure.began and failure.step is not None and (best is None or failure.step > best)
            )
        if progress:
            best, since = best if failure.step is None else failure.step, index
    return _Stretch(best, history[since] if since >= 0 else None, history[since + 1 :])


# ── why not ─────────────────────────────────────────────────────────────────────────────────────


def _cannot_start(last: Failure, stretch: _Stretch, limits: Limits) -> str:
    if not last.mistake or _has_begun(last, limits):
        return ""
    same = [
        it
        for it in stretch.at(None, limits)
        if it.mistake == last.mistake and not _has_begun(it, limits)
    ]
    if len(same) < (limits.same_steps if last.cause in SLOWLY_SURE else limits.same_starts):
        return ""
    return (
        f"it cannot start: {len(same)} attempts ended before a step in this same way: mend that,"
        " and launch it again"
    )


def _same_step(last: Failure, stretch: _Stretch, limits: Limits) -> str:
    if not last.mistake or last.step is None or not _has_begun(last, limits):
        return ""
    same = stretch.at(last.step, limits)
    if len(same) < limits.same_steps:
        return ""
    return (
        f"same step, no progress: {len(same)} attempts ended after step {last.step}, the last with"
        f" {last.told}: the program or its data are at fault; mend that, and launch it again"
    )


def _fruitless(stretch: _Stretch, limits: Limits) -> str:
    in_a_row = sum(it.began is not None or it.cause in OUR_OWN for it in stretch.idle)
    if in_a_row < limits.fruitless:
        return ""
    got = "to a first step" if stretch.best is None else f"past step {stretch.best}"
    return (
        f"no progress: {in_a_row} attempts in a row did not get {got}: what ends them comes sooner"
        " than a restart and the steps up to a save take; find it, or save more often"
    )


def _spent(history: Sequence[Failure], now_ns: int, limits: Limits) -> str:
    if limits.restarts == 0:
        return "no restarts are allowed (--max-restarts 0)"
    last = history[-1]
    used, allowed, flag = _used(history, now_ns, limits)
    if last.cause in OUR_OWN or used < allowed:
        return ""
    kind = "restarts after preemptions" if last.cause is Cause.PREEMPTION else "restarts"
    return (
        f"all {allowed} {kind} within {limits.window_ns / NS:g} s are used up: launch it again to go"
        f" on, or allow more by {flag}"
    )


def _allowance(history: Sequence[Failure], now_ns: int, limits: Limits) -> str:
    used, allowed, _ = _used(history, now_ns, limits)
    window = f"within {limits.window_ns / NS:g} s"
    if history[-1].cause in OUR_OWN:
        return "restart that counts against no budget"
    if history[-1].cause is Cause.PREEMPTION:
        return f"restart after preemption {used + 1} of {allowed} {window}"
    return f"restart {used + 1} of {allowed} {window}"


def _used(history: Sequence[Failure], now_ns: int, limits: Limits) -> tuple[int, int, str]:
    """Restarts within the window of the kind that is asked for now, how many may be, by which flag.

    Each failure before the last one was followed by a restart.
    """
    preempted = history[-1].cause is Cause.PREEMPTION
    used = sum(
        failure.at_ns > now_ns - limits.window_ns
        and failure.cause not in OUR_OWN
        and (failure.cause is Cause.PREEMPTION) is preempted
        for failure in history[:-1]
    )
    if preempted:
        return used, limits.preemptions, "--max-preemptions"
    return used, limits.restarts, "--max-restarts"


def _place(failure: Failure, limits: Limits) -> int | None:
    return failure.step if _has_begun(failure, limits) else None


def _has_begun(failure: Failure, limits: Limits) -> bool:
    return failure.lasted_ns >= limits.start_ns if failure.began is None else failure.began
