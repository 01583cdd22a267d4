"""Rounds: all that a job does from one save to storage to the next, and how many pass undisturbed.

Where nobody listens they need not be walked through. The last before anything happens always are.
"""

from dataclasses import dataclass

from harness.simulation.loop import Costs
from harness.simulation.options import FastTier, Options

_INSTANT_S = 1e-6
"""Work that is left by rounding alone, where one interval is a multiple of the other."""
_WALKED = 2
"""Rounds left before anything happens: the state that a skip ends at is durable by then."""


@dataclass(frozen=True, slots=True)
class Round:
    """From a save to storage to the next one."""

    work_s: float
    lasts_s: float
    saves: int
    """In memory, and the last one to storage."""
    commit_s: float

    def undisturbed(self, now_s: float, durable_s: float, until_s: float) -> int:
        """How many rounds from `now_s` on may be skipped, when nothing happens before `until_s`.

        None while older saves are still waiting to become durable: each would do so at its own time.
        """
        if self.commit_s > self.lasts_s or durable_s > now_s + self.commit_s:
            return 0
        return max(0, int((until_s - now_s) / self.lasts_s) - _WALKED)


def fast_comes_first(fast: FastTier, left_s: float) -> bool:
    """Whether a save to the fast tier is due before the work that storage still waits for is done."""
    return fast.interval_s < left_s - _INSTANT_S


def round_of(costs: Costs, options: Options) -> Round:
    """The round of a job: a fast tier, where there is one, is saved to as often as work is left after it."""
    fast, left_s, lasts_s, saves = options.fast, costs.interval_s, 0.0, 1
    while fast is not None and fast_comes_first(fast, left_s):
        left_s -= fast.interval_s
        lasts_s += fast.interval_s + fast.save_s
        saves += 1
    lasts_s += left_s + costs.save_s
    return Round(costs.interval_s, lasts_s, saves, options.commit_s)
