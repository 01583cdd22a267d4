"""What a fast place to save to brings beside a durable one, to first order. Pure."""

import math
from dataclasses import dataclass

from harness.quantities import checked


@dataclass(frozen=True, slots=True)
class Tier:
    """What a place to save to costs."""

    save_s: float
    restart_s: float
    """A restart from it."""


@dataclass(frozen=True, slots=True)
class TwoTiers:
    """A fast tier beside a durable one, each at its own best interval."""

    fast_interval_s: float
    """Infinite where the fast tier serves no failure."""
    durable_interval_s: float
    overhead: float
    """Time lost per unit of work."""

    @property
    def goodput(self) -> float:
        """Of the time in all: 1/(1 + overhead), some tenths of a point above the truth."""
        return 1 / (1 + self.overhead)


def two_tiers(fast: Tier, durable: Tier, mtbf_s: float, share: float) -> TwoTiers:
    """To first order, overhead = Σᵢ (δᵢ/Tᵢ + λᵢ(Tᵢ/2 + Rᵢ)) with Tᵢ = √(2δᵢ/λᵢ).

    `share` of all failures can be served by the fast tier, λ₁ = share/M; the others lose the work
    since the last durable save. By the causes of Llama 3 (arXiv 2407.21783, Table 5) a tier in the
    node's own memory serves 0.23 to 0.45 of them, a copy on another node 0.8.
    """
    checked("share", share, at_least=0, at_most=1)
    checked("mtbf_s", mtbf_s, above=0)
    rates = (share / mtbf_s, (1 - share) / mtbf_s)
    intervals, overhead = [], 0.0
    for tier, rate in zip((fast, durable), rates, strict=True):
        checked("save_s", tier.save_s, at_least=0)
        checked("restart_s", tier.restart_s, at_least=0)
        intervals.append(math.sqrt(2 * tier.save_s / rate) if rate else math.inf)
        overhead += math.sqrt(2 * tier.save_s * rate) + rate * tier.restart_s
    return TwoTiers(intervals[0], intervals[1], overhead)
