"""What many parts make of a job: how often it fails, how slow it is, how well a rate is known. Pure.

A synchronous job fails when any of its parts does, and each of its steps waits for the slowest.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import assert_never

from harness.quantities import checked


class Level(StrEnum):
    """What a mean time between failures is the one of."""

    DEVICE = "device"
    NODE = "node"
    """A failure of the node is one failure of the job, however many devices it holds."""
    JOB = "job"


def job_mtbf_s(mtbf_s: float, level: Level, devices: int, devices_per_node: int = 8) -> float:
    """Mean time between failures of a job on `devices`: the rates of its parts add up, M = M₁/N.

    For independent parts; the superposition of N renewal processes tends to a Poisson process with
    the summed rate (D. R. Cox, Renewal Theory, 1962, §6). The last node counts as a whole one.
    """
    checked("mtbf_s", mtbf_s, above=0)
    checked("devices", devices, at_least=1)
    checked("devices_per_node", devices_per_node, at_least=1)
    match level:
        case Level.DEVICE:
            return mtbf_s / devices
        case Level.NODE:
            return mtbf_s / math.ceil(devices / devices_per_node)
        case Level.JOB:
            return mtbf_s
        case _:
            assert_never(level)


def expected_slowest(count: int, own: Callable[[float], float] = lambda z: z) -> float:
    """Mean of the largest of `count` independent `own(z)`, z standard normal and `own` rising.

    E = ∫ own(z) d(Φ(z)^N): the mean of the largest order statistic (H. A. David, Order Statistics,
    1981, §3.1), by the trapezoid rule. `lambda z: mean + sd * z` is a step with normal noise,
    `lambda z: math.exp(sd * z)` one with log-normal noise.
    """
    others = checked("count", count, at_least=1) - 1
    width, total = 1 / 128, 0.0
    for place in range(-12 * 128, 12 * 128 + 1):
        z = place * width
        total += own(z) * math.exp(others * _log_normal(z) - z * z / 2)
    return total * count * width / math.sqrt(2 * math.pi)


def expected_step(ordinary: int, slow: int, slowdown: float, noise: float) -> float:
    """Mean time of a step that waits for `ordinary` and `slow` devices, over an ordinary one's own mean.

    Each device's own time is log-normal with `noise` as the standard deviation of its logarithm.
    E = ∫ (1 - F(x)^n F(x/s)^k) dx, with ln x as the variable, by the trapezoid rule.
    """
    checked("ordinary + slow", ordinary + slow, at_least=1)
    longest = checked("slowdown", slowdown, at_least=1) if slow else 1.0
    if checked("noise", noise, at_least=0, at_most=2) == 0:
        return longest
    width, from_ln = noise / 32, -noise * noise / 2 - 12 * noise
    count = math.ceil((math.log(longest) + 24 * noise) / width)
    total = math.exp(from_ln) * width / math.expm1(width)  # what lies before, by the same rule
    for place in range(count + 1):
        ln = from_ln + place * width
        z = (ln + noise * noise / 2) / noise
        below = ordinary * _log_normal(z) + slow * _log_normal(z - math.log(longest) / noise)
        total -= math.expm1(below) * math.exp(ln) * width
    return total


def _log_normal(z: float) -> float:
    """Logarithm of the normal distribution function."""
    if z > 0:
        return math.log1p(-math.erfc(z / math.sqrt(2)) / 2)
    return math.log(math.erfc(-max(z, -37.0) / math.sqrt(2)) / 2)


def persistent_slowdown(count: int, share: float, slowdown: float) -> float:
    """Mean slowdown of a job on `count` devices of which each is slow with probability `share`.

    One slow device slows all: S = 1 + (s - 1)(1 - (1 - p)^N). The share of the paid time that is
    wasted is 1 - 1/s while it lasts (J. Lin et al., arXiv 2505.05713, §3).
    """
    checked("count", count, at_least=1)
    checked("share", share, at_least=0, at_most=1)
    checked("slowdown", slowdown, at_least=1)
    some_slow = -math.expm1(count * math.log1p(-share)) if share < 1 else 1.0
    return 1 + (slowdown - 1) * some_slow


# ── how well a rate is known ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class FailureRate:
    """What `failures` in `up_s` say of a rate: a Gamma(failures + ½, up_s) distribution.

    The posterior of a Poisson rate under Jeffreys' prior (A. Gelman et al., Bayesian Data Analysis,
    §2.6-2.8). Time without a failure counts; an end that is no failure only ends the time.
    """

    failures: int
    up_s: float

    @property
    def mtbf_s(self) -> float | None:
        """Time over failures; None without a failure, when there is no upper bound to be told."""
        return self.up_s / self.failures if self.failures else None

    def quantile_per_s(self, probability: float) -> float:
        """The rate that is not exceeded with `probability`, between 0 and 1."""
        checked("probability", probability, above=0, at_most=1 - 1e-12)
        return _quantile(self.failures + 0.5, probability) / self.up_s

    def mtbf_at_least_s(self, confidence: float = 0.95) -> float:
        """The exact one-sided lower bound of the mean time between failures; there always is one.

        From the Gamma(failures + 1) distribution, the posterior under a flat prior: χ² with 2n + 2
        degrees of freedom (F. Garwood, Biometrika 28, 1936). 100 h without a failure: 33.4 h.
        """
        checked("confidence", confidence, above=0, at_most=1 - 1e-12)
        return self.up_s / _quantile(self.failures + 1, confidence)

    def mtbf_at_most_s(self, confidence: float = 0.95) -> float | None:
        """The exact one-sided upper bound, from Gamma(failures); None without a failure."""
        checked("confidence", confidence, above=0, at_most=1 - 1e-12)
        return self.up_s / _quantile(self.failures, 1 - confidence) if self.failures else None

    def mtbf_within_s(self, confidence: float = 0.9) -> tuple[float, float]:
        """The central interval that holds the mean time between failures with `confidence`."""
        outside = (1 - checked("confidence", confidence, above=0, at_most=1 - 1e-9)) / 2
        return 1 / self.quantile_per_s(1 - outside), 1 / self.quantile_per_s(outside)


def failure_rate(failures: int, up_s: float) -> FailureRate:
    """What is known of a rate from `failures` in `up_s` of exposed time, all parts together.

    Raises `ValueError` for failures that are no count, and for no time.
    """
    if failures != int(checked("failures", failures, at_least=0)):
        raise ValueError(f"failures = {failures!r} is not a whole number: failures are counted")
    return FailureRate(int(failures), checked("up_s", up_s, above=0))


@lru_cache(maxsize=64)  # a scrape a second asks for the same one until something fails again
def _quantile(shape: float, probability: float) -> float:
    """Where the distribution function of Gamma(shape, 1) has come to `probability`, by bisection."""
    low, high = 0.0, shape + 10 * math.sqrt(shape) + 40
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _below(shape, middle) < probability else (low, middle)
    return high


def _below(shape: float, x: float) -> float:
    """The regularised lower incomplete gamma function P(shape, x).

    By its series below the mean and Lentz' continued fraction above (NIST DLMF 8.11.4, 8.9.2).
    """
    if x <= 0:
        return 0.0
    front = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        return front * _series(shape, x)
    return 1 - front * _fraction(shape, x)


def _series(shape: float, x: float) -> float:
    term = total = 1 / shape
    count = shape
    while term > total * 1e-17:
        count += 1
        term *= x / count
        total += term
    return total


def _fraction(shape: float, x: float) -> float:
    b = x + 1 - shape
    c, d = 1e300, 1 / b
    value = d
    for place in range(1, 10_000):
        a = -place * (place - shape)
        b += 2
        d = 1 / (a * d + b)
        c = b + a / c
        value *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return value
