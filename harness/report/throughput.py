"""What a report says of a job's speed, and of how much of its hardware it used."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.events import ArithmeticKnown
from harness.report.spread import number, seconds
from harness.signals.speed import mfu

_NAMES = {"counted": "counted by torch", "formula": "by 6 N a token"}


@dataclass(frozen=True, slots=True)
class Throughput:
    """Over all work of a run, redone steps too."""

    tokens: int = 0
    worked_ns: int = 0
    ranks: int = 0
    arithmetic: ArithmeticKnown | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """None for a job that tells of no tokens."""
        return self.tokens / seconds(self.worked_ns) if self.tokens and self.worked_ns else None

    @property
    def mfu(self) -> Mapping[str, float]:
        """Share of the devices' peak while it worked, by how the arithmetic is counted."""
        return mfu(self.arithmetic, self.tokens_per_s or 0.0, self.ranks)

    def lines(self) -> list[str]:
        """For people."""
        if self.tokens_per_s is None:
            return []
        told = [f"tokens: {self.tokens:,}, {self.tokens_per_s:,.0f} a second of work"]
        known = self.arithmetic
        if self.mfu and known is not None and known.peak_flops is not None:
            shares = ", ".join(f"{share:.1%} {_NAMES[name]}" for name, share in self.mfu.items())
            peak = f"{known.peak_flops / 1e12:,.4g} TFLOP/s {known.dtype}, {known.peak_source}"
            told.append(f"MFU: {shares} (peak of a device: {peak})")
        return told

    def to_json(self) -> dict[str, Any]:
        """Figures of a second."""
        shares = {name: number(share) for name, share in self.mfu.items()}
        return {"tokens_per_s": self.tokens_per_s, "mfu": shares}
