"""How fast a job goes, from the log: tokens a second of work, and what that is of the hardware's peak."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.events import ArithmeticKnown

WINDOW_NS = 30_000_000_000
"""Of work: a step that is longer has the window to itself."""
_BIN_NS = 1_000_000_000


@dataclass(slots=True)
class Bin:
    """A second of work, or a step that is longer."""

    worked_ns: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Speed:
    """The last of the present attempt's work."""

    bins: list[Bin] = field(default_factory=list)
    worked_ns: int = 0
    tokens: int = 0
    arithmetic: ArithmeticKnown | None = None

    def resume(self) -> None:
        """Another attempt has a speed of its own."""
        self.bins, self.worked_ns, self.tokens = [], 0, 0

    def add(self, worked_ns: int, tokens: int) -> None:
        """A step was done."""
        if not self.bins or self.bins[-1].worked_ns >= _BIN_NS:
            self.bins.append(Bin())
        self.bins[-1].worked_ns += worked_ns
        self.bins[-1].tokens += tokens
        self.worked_ns += worked_ns
        self.tokens += tokens
        while len(self.bins) > 1 and self.worked_ns - self.bins[0].worked_ns >= WINDOW_NS:
            gone = self.bins.pop(0)
            self.worked_ns -= gone.worked_ns
            self.tokens -= gone.tokens

    @property
    def tokens_per_s(self) -> float | None:
        """Over all ranks, in the window; None for a job that tells of no tokens."""
        return 1e9 * self.tokens / self.worked_ns if self.tokens and self.worked_ns else None


def mfu(known: ArithmeticKnown | None, tokens_per_s: float, ranks: int) -> Mapping[str, float]:
    """Share of the peak of all devices that the model's arithmetic takes, by how it is counted."""
    if known is None or not known.peak_flops or ranks < 1:
        return {}
    flops = {"counted": known.counted_flops, "formula": known.formula_flops}
    return {
        name: per_token * tokens_per_s / (ranks * known.peak_flops)
        for name, per_token in flops.items()
        if per_token
    }
