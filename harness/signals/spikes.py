"""Whether the loss has jumped out of what it was. Decides, from the losses so far.

A loss stands out where it lies further above the median of a window than so many robust standard
deviations (1.4826 times the median absolute deviation; Hampel 1974), which a few wild losses in the
window do not move. One such loss is a hard batch; several in a row are a spike.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, pstdev

ROBUST = 1.4826
"""Times the median absolute deviation: the standard deviation, where losses are normal."""

NORMAL_98 = 2.054
"""Standard deviations above the median that 98 % stay below, where losses are normal."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far, and for how long, a loss must stand out."""

    window: int = 100
    """Losses that are looked back on; half of it at least."""
    deviations: float = 8.0
    in_a_row: int = 2
    least: float = 0.02
    """Share of the median that a deviation counts at least: losses that hardly vary are no alarm."""


@dataclass(frozen=True, slots=True)
class Spike:
    """A loss that stands out."""

    loss: float
    usual: float
    """The median before it."""
    deviations: float
    """How far above that, in robust standard deviations."""


def stands_out(before: Sequence[float], loss: float, limits: Limits) -> Spike | None:
    """How `loss` lies above those `before` it, the newest last; None where it does not stand out."""
    seen = before[-limits.window :]
    if len(seen) < max(1, limits.window // 2):
        return None
    usual = median(seen)
    if loss - usual <= limits.deviations * limits.least * abs(usual):
        return None  # whatever the others' scatter is: mostly nothing is left to compute
    scale = max(_scatter(seen, usual), limits.least * abs(usual))
    if loss - usual <= limits.deviations * scale:
        return None
    return Spike(loss, usual, (loss - usual) / scale if scale else math.inf)


def _scatter(seen: Sequence[float], usual: float) -> float:
    """What stands for a standard deviation of losses whose median is `usual`.

    Losses with a floor that many of them lie on, as those of a hinge do on zero, vary above it
    alone: the deviations of the others say little, and what 98 % stay below says more.
    """
    spread = ROBUST * median(abs(it - usual) for it in seen)
    rising = sorted(seen)
    if seen.count(rising[0]) <= max(1, len(seen) // 10):
        return spread
    return max(spread, (rising[-1 - len(seen) // 50] - usual) / NORMAL_98) or pstdev(seen)


class Losses:
    """The losses of one rank, one after the other. What is not finite is another finding's."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._seen: deque[float] = deque(maxlen=limits.window)
        self._in_a_row = 0

    def remember(self, losses: Sequence[float]) -> None:
        """Those of steps before this rank's first one."""
        self._seen.extend(losses)

    def usual(self) -> Sequence[float]:
        """Those before the spike that has just begun."""
        return tuple(self._seen)[: -self._limits.in_a_row]

    def add(self, loss: float) -> Spike | None:
        """The spike that begins with this loss, if one does."""
        if not math.isfinite(loss):
            return None
        found = stands_out(tuple(self._seen), loss, self._limits)
        self._seen.append(loss)
        self._in_a_row = 0 if found is None else self._in_a_row + 1
        return found if self._in_a_row == self._limits.in_a_row else None
