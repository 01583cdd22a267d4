"""What a run says of its own failures, and of the interval between saves that follows from them. Pure.

The same figures as `harness plan` draws from finished runs, at any moment of one that goes on.
"""

from harness.account import Account
from harness.events import Cause, Tier
from harness.phases import Phase
from harness.theory import FailureRate, best_interval_s, failure_rate

UP = (Phase.WORK, Phase.EVALUATION, Phase.SAVE_STALL, Phase.INTERRUPTED)
"""The phases in which a failure stops training; the others are the way back from one."""

_NS = 1_000_000_000


def up_s(account: Account) -> float:
    """For how long a failure could have stopped training."""
    settled_ns = sum(account.totals[phase] for phase in UP)
    waiting = [one for one in account.unsettled(account.at_ns) if one.phase in UP]
    return (settled_ns + sum(one.duration_ns for one in waiting)) / _NS


def failures_seen(account: Account) -> FailureRate | None:
    """Incidents over the up time of the job; None before it trained. A preemption is nobody's failure."""
    exposed_s = up_s(account)
    if exposed_s <= 0:
        return None
    incidents = account.recovery.incidents
    count = sum(n for cause, n in incidents.items() if cause != Cause.PREEMPTION)
    return failure_rate(count, exposed_s)


def best_measured_interval_s(account: Account, tier: Tier) -> float | None:
    """The work between two saves that costs least, by their mean stall and the failures so far.

    None where there was no save or no failure yet: then no interval is better than any longer one.
    """
    seen, saves = failures_seen(account), account.checkpoints.saves.get(tier)
    if seen is None or seen.mtbf_s is None or saves is None or not saves.stalls.count:
        return None
    return best_interval_s(saves.stalls.total_ns / saves.stalls.count / _NS, seen.mtbf_s)
