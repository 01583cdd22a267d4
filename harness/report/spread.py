"""Durations told in a few figures, and the one place where a report's nanoseconds become seconds."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, overload

_NS = 1_000_000_000


@overload
def seconds(duration_ns: int) -> float: ...
@overload
def seconds(duration_ns: None) -> None: ...
def seconds(duration_ns: int | None) -> float | None:
    """Nanoseconds as seconds; what is not known stays None."""
    return None if duration_ns is None else duration_ns / _NS


def duration(duration_ns: int) -> str:
    """A duration in at most two units."""
    total_s = seconds(duration_ns)
    if total_s < 1:
        return f"{1000 * total_s:.0f} ms"
    if total_s < 60:
        return f"{total_s:.2f} s" if total_s < 10 else f"{total_s:.1f} s"
    minutes, rest_s = divmod(total_s, 60)
    if minutes < 60:
        return f"{minutes:.0f} min {int(rest_s)} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:.0f} h {minutes:.0f} min"


def number(value: float) -> float | str:
    """JSON has no NaN and no infinity: they are spelled, as in the log."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def counted(count: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@dataclass(frozen=True, slots=True)
class Spread:
    """Some durations: in the middle, the one that nine in ten do not exceed, and the longest."""

    count: int
    median_ns: int | None = None
    p90_ns: int | None = None
    max_ns: int | None = None

    @classmethod
    def of(cls, durations_ns: Iterable[int]) -> "Spread":
        """The spread of `durations_ns`; p90 is one of them (nearest rank)."""
        ordered = sorted(durations_ns)
        if not ordered:
            return cls(0)
        p90_ns = ordered[math.ceil(0.9 * len(ordered)) - 1]
        return cls(len(ordered), round(statistics.median(ordered)), p90_ns, ordered[-1])

    def to_json(self) -> dict[str, Any]:
        """In seconds."""
        return {
            "count": self.count,
            "median": seconds(self.median_ns),
            "p90": seconds(self.p90_ns),
            "max": seconds(self.max_ns),
        }
