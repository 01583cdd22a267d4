"""Laws of durations: gaps between failures, restarts, repairs. Each is known by its quantiles.

A duration is drawn by putting a uniform number into `quantile_s`, so one number makes one duration
and the same stream gives comparable runs under every law.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

from harness.quantities import checked

_NORMAL = NormalDist()
_LEAST = 2.0**-33
"""Half of mulberry32's smallest step: stands for a draw of 0, whose quantile may be infinite."""


class Law(Protocol):
    """How long something takes, or how long until something happens."""

    @property
    def mean_s(self) -> float:
        """The expected duration."""

    def quantile_s(self, u: float, /) -> float:
        """The duration that a share `u` of all does not exceed; 0 ≤ u < 1."""


@dataclass(frozen=True, slots=True)
class Constant:
    """Always the same. As a gap between failures it aliases with the interval: not for demonstrations."""

    mean_s: float

    def __post_init__(self) -> None:
        checked("mean_s", self.mean_s, at_least=0)

    def quantile_s(self, _u: float, /) -> float:
        """See `Law`."""
        return self.mean_s


@dataclass(frozen=True, slots=True)
class Exponential:
    """Without memory: what is still to come never depends on what has passed."""

    mean_s: float

    def __post_init__(self) -> None:
        checked("mean_s", self.mean_s, above=0)

    def quantile_s(self, u: float, /) -> float:
        """See `Law`; written as the textbook simulator writes it, to the last bit."""
        return -math.log(1 - u) * self.mean_s


@dataclass(frozen=True, slots=True)
class Weibull:
    """F(t) = 1 - e^(-(t/scale)^shape): a shape below 1 makes bursts, as public traces show (0.62)."""

    mean_s: float
    shape: float

    def __post_init__(self) -> None:
        checked("mean_s", self.mean_s, above=0)
        checked("shape", self.shape, at_least=0.05)

    @property
    def scale_s(self) -> float:
        """The mean over Γ(1 + 1/shape)."""
        return self.mean_s / math.gamma(1 + 1 / self.shape)

    def quantile_s(self, u: float, /) -> float:
        """See `Law`."""
        return self.scale_s * float((-math.log(1 - u)) ** (1 / self.shape))


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A duration whose logarithm is normal; `cv` is its standard deviation over its mean."""

    mean_s: float
    cv: float

    def __post_init__(self) -> None:
        checked("mean_s", self.mean_s, above=0)
        checked("cv", self.cv, above=0)

    def quantile_s(self, u: float, /) -> float:
        """See `Law`."""
        variance = math.log1p(self.cv**2)
        z = _NORMAL.inv_cdf(max(u, _LEAST))
        return self.mean_s * math.exp(math.sqrt(variance) * z - variance / 2)


@dataclass(frozen=True, slots=True)
class Observed:
    """One of the durations that were seen, each as likely as the others."""

    durations_s: Sequence[float]

    def __post_init__(self) -> None:
        if not self.durations_s:
            raise ValueError("no durations to draw from: give at least one")
        for duration_s in self.durations_s:
            checked("duration_s", duration_s, at_least=0)

    @property
    def mean_s(self) -> float:
        """See `Law`."""
        return math.fsum(self.durations_s) / len(self.durations_s)

    def quantile_s(self, u: float, /) -> float:
        """See `Law`."""
        return sorted(self.durations_s)[int(u * len(self.durations_s))]


def first_after(instants_s: Sequence[float], now_s: float) -> float:
    """The first of the sorted `instants_s` after `now_s`; infinite where there is none."""
    place = bisect.bisect_right(instants_s, now_s)
    return instants_s[place] if place < len(instants_s) else math.inf
