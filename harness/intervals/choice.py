"""How often to save to each tier, decided from what was measured: pure, and nowhere else.

Two tiers at once, to first order (`tiers.py`), where the rate of failures and the share of them that
memory serves are posterior means. A choice moves by a factor of two at most, and only if that pays.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

from harness import tiers
from harness.events import Tier
from harness.intervals.asked import Auto, Seconds, in_steps

PRIOR_FAILURES, PRIOR_UP_S = 0.5, 1800.0
"""Before anything is seen: as if half a failure had come in half an hour, which is one an hour."""
PRIOR_SHARE, PRIOR_RETURNS = 0.45, 1.0
"""As if of one failure 0.45 had been served by memory: Llama 3's causes, memory errors among them."""
PAYS = 1.25
"""An interval that is off by less costs at most 1.025 times the least: (r + 1/r) / 2."""
FIRST: Mapping[Tier, tuple[int, float]] = {Tier.MEMORY: (8, 10.0), Tier.STORAGE: (50, 60.0)}
"""Steps and seconds, whichever is less, until a save was measured."""
COMMITS = 2.0
"""Storage is left alone for half of the time at least: its saves stop nobody, and still use the machine."""
_LEAST_SAVE_S = 1e-6


@dataclass(frozen=True, slots=True)
class History:
    """What the log says of the run up to the attempt that goes on."""

    failures: int = 0
    up_s: float = 0.0
    """Time in which a failure would have stopped training."""
    returns: Mapping[Tier, int] = field(default_factory=dict)
    """How often a state was resumed from, by where it lay."""
    restart_s: Mapping[Tier, float] = field(default_factory=dict)
    """From the last step before a failure to the first one after, in the mean."""
    save_s: Mapping[Tier, float] = field(default_factory=dict)
    """Training was blocked for so long by a save, in the mean."""
    steps: Mapping[Tier, int] = field(default_factory=dict)
    """The last choice."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a choice rests on."""

    step_s: float
    save_s: Mapping[Tier, float]
    """By tier that is in use; one without a save yet is missing."""
    history: History
    commit_s: float = 0.0
    """From the copy of a save to storage until it was durable; 0 while none was."""

    @property
    def rate_per_s(self) -> float:
        """Mean of the Gamma posterior over the rate of failures; never 0."""
        return (self.history.failures + PRIOR_FAILURES) / (self.history.up_s + PRIOR_UP_S)

    @property
    def share(self) -> float:
        """Mean of the Beta posterior over the share of failures that memory serves; never 0 or 1."""
        served = self.history.returns.get(Tier.MEMORY, 0)
        seen = served + self.history.returns.get(Tier.STORAGE, 0)
        return (served + PRIOR_SHARE * PRIOR_RETURNS) / (seen + PRIOR_RETURNS)

    def inputs(self, tier: Tier) -> dict[str, float]:
        """All that a choice for `tier` rests on, by name, for the log."""
        of = self.history
        optional = {"save_s": self.save_s.get(tier), "restart_s": of.restart_s.get(tier)}
        known = {name: value for name, value in optional.items() if value is not None}
        return {
            "step_s": self.step_s,
            **known,
            "failures": of.failures,
            "up_s": of.up_s,
            "mtbf_s": 1 / self.rate_per_s,
            "share": self.share,
            **({"commit_s": self.commit_s} if tier is Tier.STORAGE and self.commit_s else {}),
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """An interval, and why it is that."""

    steps: int
    optimal_s: float | None
    """What would be best without bounds and limits; None while nothing is measured."""
    reason: str


def best_s(of: Measured, alone: bool) -> dict[Tier, float]:
    """The best interval of each tier whose saves were measured; of one `alone`, for all failures."""
    memory, storage = (
        tiers.Tier(
            max(of.save_s.get(tier, 0.0), _LEAST_SAVE_S), of.history.restart_s.get(tier, 0.0)
        )
        for tier in (Tier.MEMORY, Tier.STORAGE)
    )
    shares = (1.0, 0.0) if alone else (of.share, of.share)
    fast, durable = (tiers.two_tiers(memory, storage, 1 / of.rate_per_s, one) for one in shares)
    best = {Tier.MEMORY: fast.fast_interval_s, Tier.STORAGE: durable.durable_interval_s}
    return {tier: best[tier] for tier in of.save_s}


def decide(
    tier: Tier, now_steps: int | None, asked: Auto | Seconds, of: Measured, alone: bool
) -> Decision:
    """The interval of `tier`, which is `now_steps` now; `alone` if the other tier is off."""
    match asked:
        case Seconds(wanted_s):
            return _fixed(now_steps, wanted_s, of.step_s)
        case Auto():
            return _chosen(tier, now_steps, asked, of, alone)
        case _:
            assert_never(asked)


def _fixed(now_steps: int | None, wanted_s: float, step_s: float) -> Decision:
    steps = max(1, round(wanted_s / step_s))
    if now_steps is not None and _is_near(steps, now_steps):
        steps = now_steps
    return Decision(steps, None, f"{wanted_s:g} s were asked for, at {step_s:.3g} s a step")


def _chosen(tier: Tier, now_steps: int | None, asked: Auto, of: Measured, alone: bool) -> Decision:
    best = best_s(of, alone).get(tier)
    if best is None:
        first_steps, first_s = FIRST[tier]
        wanted = now_steps or min(first_steps, first_s / of.step_s)
        return Decision(bounded(wanted, asked, of.step_s), None, "no save was measured yet")
    busy_s = COMMITS * of.commit_s if tier is Tier.STORAGE else 0.0
    wanted = max(best, busy_s) / of.step_s
    steps = wanted if now_steps is None else _approach(now_steps, wanted)
    chosen = bounded(steps, asked, of.step_s)
    why = _why(tier, best, of, alone)
    if busy_s > best:
        why += f"; a commit takes {of.commit_s:.3g} s, and storage rests as long"
    if chosen != round(steps):
        why += "; a bound holds"
    elif chosen == now_steps:
        why += "; what it is now is as good"
    elif not _is_near(wanted, chosen):
        why += "; by a factor of two at a time"
    return Decision(chosen, best, why)


def _approach(now_steps: int, wanted: float) -> float:
    """From now towards what is wanted: by a factor of two at most, and not at all if it is near."""
    if _is_near(wanted, now_steps):
        return now_steps
    return min(max(wanted, math.ceil(now_steps / 2)), 2 * now_steps)


def bounded(steps: float, asked: Auto, step_s: float) -> int:
    """`steps` as a whole number within the bounds, and at least 1."""
    least = math.ceil(in_steps(asked.least, step_s))
    most = max(1, math.floor(in_steps(asked.most, step_s)))
    return min(max(round(min(steps, most)), least, 1), most)


def _is_near(one: float, other: float) -> bool:
    return one <= PAYS * other and other <= PAYS * one


def _why(tier: Tier, best: float, of: Measured, alone: bool) -> str:
    share = of.share if tier is Tier.MEMORY else 1 - of.share
    rate = f"a failure in {1 / of.rate_per_s:.4g} s"
    if not alone:
        rate += f", of which {tier} serves {share:.0%}"
    return f"{best:.3g} s is best: a save blocks {of.save_s[tier]:.3g} s, {rate}"
