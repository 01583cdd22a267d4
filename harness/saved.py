"""The metrics of saves, checkpoints and restores, from what is known of a run at one moment: pure."""

from collections.abc import Callable, Mapping

from harness import metrics
from harness.events import Rejection, Tier
from harness.histogram import Histogram
from harness.present import Present, Values
from harness.reliability import best_measured_interval_s
from harness.saves import Saves

_NS = 1_000_000_000


def _tiers(now: Present) -> dict[Tier, Saves]:
    """Storage has its zeros from the start, memory once it is chosen how often: not every run has that tier."""
    saves = now.account.checkpoints.saves
    known = {Tier.STORAGE, *saves, *now.account.intervals}
    return {tier: saves.get(tier, Saves()) for tier in Tier if tier in known}


def _outcomes(now: Present) -> Values:
    values: dict[tuple[str, ...], float] = {}
    for tier, saves in _tiers(now).items():
        values[tier.value, "committed"] = saves.committed
        values[tier.value, "failed"] = saves.failed
        values[tier.value, "superseded"] = saves.superseded
    return values


def _restores(now: Present) -> Values:
    restores = now.account.checkpoints.restores
    return {(tier.value,): restores.get(tier, Histogram()) for tier in _tiers(now)}


def _bytes(now: Present) -> Values:
    values: dict[tuple[str, ...], float] = {}
    for tier, saves in _tiers(now).items():
        values["write", tier.value] = saves.bytes
        values["read", tier.value] = saves.restored_bytes
    return values


def _committed(now: Present) -> dict[Tier, Saves]:
    return {tier: saves for tier, saves in _tiers(now).items() if saves.committed}


def _last_steps(now: Present) -> Values:
    steps = {tier.value: saves.last_step for tier, saves in _committed(now).items()}
    return {(tier,): step for tier, step in steps.items() if step is not None}


def _intervals(now: Present) -> Values:
    values: dict[tuple[str, ...], float] = {}
    for tier, saves in _tiers(now).items():
        if saves.interval_ns is not None:
            values[tier.value, "current"] = saves.interval_ns / _NS
        best_s = best_measured_interval_s(now.account, tier)
        if best_s is not None:
            values[tier.value, "optimal"] = best_s
    for tier, chosen in now.account.intervals.items():
        values[tier.value, "chosen"] = chosen.seconds
        if chosen.optimal_s is not None:
            values[tier.value, "optimal"] = chosen.optimal_s
    return values


def _rejected(now: Present) -> Values:
    found = now.account.checkpoints.rejected
    return {(rejection.value,): found.get(rejection, 0) for rejection in Rejection}


DRAW_SAVED: Mapping[str, Callable[[Present], Values]] = {
    metrics.SAVES.name: _outcomes,
    metrics.STALL_DURATION.name: lambda now: {(t.value,): s.stalls for t, s in _tiers(now).items()},
    metrics.COMMIT_DURATION.name: lambda now: {
        (tier.value,): saves.commits for tier, saves in _tiers(now).items()
    },
    metrics.RESTORE_DURATION.name: _restores,
    metrics.CHECKPOINT_BYTES.name: _bytes,
    metrics.CHECKPOINT_SIZE.name: lambda now: {
        (tier.value,): saves.last_bytes for tier, saves in _committed(now).items()
    },
    metrics.REJECTED.name: _rejected,
    metrics.LAST_SAVE_STEP.name: _last_steps,
    metrics.LAST_SAVE_TIME.name: lambda now: {
        (tier.value,): saves.last_at_ns / _NS for tier, saves in _committed(now).items()
    },
    metrics.INTERVAL.name: _intervals,
}
"""How each of these families is drawn, by name."""
