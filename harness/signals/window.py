"""Which steps a rank tells of together, so that all ranks tell of the same: pure.

Steps of a second or more are told one by one. Shorter ones are told up to every step whose number
is a multiple of a power of two, about once a second; ranks that take another power meet at every
multiple of the larger one.
"""

from dataclasses import dataclass

from harness.events import StepTimed
from harness.signals.passage import StepTime

SECOND_NS = 1_000_000_000


def stride(steps: int, elapsed_ns: int) -> int:
    """The least power of two of such steps that take a second, when `steps` took `elapsed_ns`."""
    in_a_second = -(-SECOND_NS * steps // max(1, elapsed_ns))
    return 1 << (in_a_second - 1).bit_length()


@dataclass(slots=True)
class Window:
    """The steps that are not told of yet. The first one ever is told alone, for it warms up."""

    every: int = 1
    steps: int = 0
    own_ns: int = 0
    wait_ns: int = 0
    data_ns: int = 0
    compute_ns: int = 0

    def add(self, step: int, passed: StepTime, last: bool) -> StepTimed | None:
        """Take in `step`; what is to be told now. The `last` step is told in any case."""
        self.steps += 1
        self.own_ns += passed.own_ns
        self.wait_ns += passed.wait_ns
        self.data_ns += passed.data_ns
        self.compute_ns += passed.compute_ns
        elapsed_ns = self.own_ns + self.wait_ns
        every = stride(self.steps, elapsed_ns)
        if elapsed_ns >= 2 * SECOND_NS:  # steps became slow: not so many of them are waited for
            self.every = min(self.every, every, stride(1, passed.own_ns + passed.wait_ns))
        if not last and step % self.every:
            return None
        steps = self.steps
        told = StepTimed(
            step,
            self.own_ns // steps,
            self.wait_ns // steps,
            self.data_ns // steps,
            self.compute_ns // steps,
            steps,
        )
        self.every, self.steps = every, 0
        self.own_ns = self.wait_ns = self.data_ns = self.compute_ns = 0
        return told
