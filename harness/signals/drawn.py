"""The metrics of slow ranks, from what is known of a run at one moment: pure."""

from collections.abc import Callable, Mapping

from harness import metrics
from harness.present import Present, Values, by_rank, one

_NS = 1_000_000_000


def _is_training(now: Present) -> bool:
    """Of a run that is down, or has not come back yet, nobody is late."""
    account = now.account
    return now.is_led and account.holder == account.attempt > account.dead_attempt


def _delays(now: Present) -> Values:
    last = now.account.stragglers.last
    if last is None or not _is_training(now):
        return {}
    return by_rank({rank: ns / _NS for rank, ns in enumerate(last.late_ns)})


def _named(now: Present) -> Values:
    if not _is_training(now):
        return {}
    return {(str(who.rank), who.lag.value): 1.0 for who in now.account.stragglers.standing}


def _slowdown(now: Present) -> Values:
    return one(now.account.stragglers.reference.slowdown if _is_training(now) else None)


DRAW_SLOW: Mapping[str, Callable[[Present], Values]] = {
    metrics.STRAGGLER_DELAY.name: _delays,
    metrics.STRAGGLER_WAIT.name: lambda now: one(now.account.stragglers.waited_ns / _NS),
    metrics.STRAGGLER_NAMED.name: _named,
    metrics.SLOWDOWN.name: _slowdown,
}
"""How each of these families is drawn, by name."""
