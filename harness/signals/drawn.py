"""The metrics of slow ranks and of speed, from what is known of a run at one moment: pure."""

from collections.abc import Callable, Mapping

from harness import metrics
from harness.present import Present, Values, by_rank, one
from harness.signals.speed import mfu

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


def _tokens(now: Present) -> float | None:
    return now.account.speed.tokens_per_s if _is_training(now) else None


def _mfu(now: Present) -> Values:
    account, tokens_per_s = now.account, _tokens(now)
    if tokens_per_s is None:
        return {}
    shares = mfu(account.speed.arithmetic, tokens_per_s, account.world_size)
    return {(name,): share for name, share in shares.items()}


def _slowdown(now: Present) -> Values:
    return one(now.account.stragglers.reference.slowdown if _is_training(now) else None)


DRAW_SLOW: Mapping[str, Callable[[Present], Values]] = {
    metrics.STRAGGLER_DELAY.name: _delays,
    metrics.STRAGGLER_WAIT.name: lambda now: one(now.account.stragglers.waited_ns / _NS),
    metrics.STRAGGLER_NAMED.name: _named,
    metrics.SLOWDOWN.name: _slowdown,
    metrics.TOKENS_PER_SECOND.name: lambda now: one(_tokens(now)),
    metrics.MFU.name: _mfu,
}
"""How each of these families is drawn, by name."""
