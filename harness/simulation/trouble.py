"""When a simulated job is stopped next: by a failure, or by someone who sees that its numbers are wrong."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from harness.events import Cause
from harness.simulation.draws import mulberry32, stream
from harness.simulation.failures import Failure, Failures
from harness.simulation.options import Corruption, Exposure


class Stop(NamedTuple):
    """Training ends here; what is not saved is lost."""

    at_s: float
    failure: Failure | None
    """None: the numbers are wrong."""


class Trouble:
    """What is to come, as far as it is drawn."""

    corrupt_s: float = math.inf
    """From here on the numbers are wrong …"""
    noticed_s: float = math.inf
    """… and from here on somebody knows."""

    def __init__(
        self, failures: Failures, corruption: Corruption | None, exposure: Exposure, seed: int
    ) -> None:
        self._next = failures.begin(mulberry32(seed))
        self._corruption, self._exposure = corruption, exposure
        self._draw = stream(seed, "corruption")
        self._failure = self._next(0.0)
        self._corrupt_again(0.0)

    def stop(self, now_s: float) -> Stop:
        """What stops a job first that trains since before `now_s`."""
        noticed_s = max(self.noticed_s, now_s)
        if noticed_s <= self._failure.at_s:
            return Stop(noticed_s, None)
        return Stop(self._failure.at_s, self._failure)

    def on_the_way(self, stop: Stop, detected_s: float) -> Failure | None:
        """The failure that may strike before training is back; None where none can.

        One that comes before the last was even noticed does not count.
        """
        if self._exposure is Exposure.TRAINING:
            return None
        while self._failure.at_s <= max(stop.at_s, detected_s):
            self._failure = self._next(self._failure.at_s)
        return self._failure

    def train(self, now_s: float, taken_s: float) -> None:
        """Training is back, from a state that was taken at `taken_s`; what is past strikes no more."""
        if self._exposure is Exposure.TRAINING:
            self._failure = self._next(now_s)
        while self._failure.at_s < now_s:
            self._failure = self._next(self._failure.at_s)
        if taken_s <= self.corrupt_s:
            self._corrupt_again(now_s)

    def _corrupt_again(self, now_s: float) -> None:
        if self._corruption is not None:
            self.corrupt_s = now_s + self._corruption.gap.quantile_s(self._draw())
            self.noticed_s = self.corrupt_s + self._corruption.lag.quantile_s(self._draw())


class Blame(NamedTuple):
    """What a failure may be put down to, and how often it is that."""

    reason: str
    cause: Cause
    weight: float


NODE_LOSS = (Blame("a node failed", Cause.NODE_LOSS, 1.0),)


def blamed(blames: Sequence[Blame], u: float) -> Blame:
    """The cause that the uniform number `u` picks, each as often as its weight says."""
    left = u * sum(blame.weight for blame in blames)
    for blame in blames:
        left -= blame.weight
        if left < 0:
            return blame
    return blames[-1]
