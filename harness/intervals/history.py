"""What the log of a run says that bears on how often to save."""

import threading
from collections.abc import Callable

from harness.account import Account
from harness.cache import Following
from harness.events import Tier
from harness.histogram import Histogram
from harness.intervals.choice import History
from harness.recovery import Stage
from harness.reliability import failures_seen, up_s
from harness.rundir import RunDir

_NS = 1_000_000_000


def of(account: Account) -> History:
    """The part of an account that choices rest on."""
    checkpoints, seen = account.checkpoints, failures_seen(account)
    saves = {tier: _mean_s(saves.stalls) for tier, saves in checkpoints.saves.items()}
    return History(
        failures=0 if seen is None else seen.failures,
        up_s=up_s(account),
        returns={tier: restores.count for tier, restores in checkpoints.restores.items()},
        restart_s=_restarts_s(account),
        save_s={tier: mean_s for tier, mean_s in saves.items() if mean_s is not None},
        steps={tier: chosen.steps for tier, chosen in account.intervals.items()},
    )


def _restarts_s(account: Account) -> dict[Tier, float]:
    """By tier: the mean of all restarts, with the time to restore of that tier in place of the mean."""
    whole_s = _mean_s(account.recovery.until_first_step)
    restore_s = _mean_s(account.recovery.stages.get(Stage.RESTORE, Histogram()))
    if whole_s is None or restore_s is None:
        return {}
    from_tier = {tier: _mean_s(one) for tier, one in account.checkpoints.restores.items()}
    return {
        tier: max(0.0, whole_s - restore_s + mean_s)
        for tier, mean_s in from_tier.items()
        if mean_s is not None
    }


def _mean_s(durations: Histogram) -> float | None:
    return durations.total_ns / durations.count / _NS if durations.count else None


def read(run_dir: RunDir) -> History:
    """What the log says up to now; where it cannot be read, nothing."""
    try:
        following = Following(run_dir)
        following.poll()
        following.poll_ahead()
    except Exception:  # noqa: BLE001 - how often to save does not hang on a log that can be read
        return History()
    return of(following.fold)


def read_beside(run_dir: RunDir, learn: Callable[[History], None]) -> None:
    """`read` in a thread, and hand what it says to `learn`: no restart waits for it."""
    threading.Thread(
        target=lambda: learn(read(run_dir)), name="harness-history", daemon=True
    ).start()
