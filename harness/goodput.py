"""Where the time of a run went. Goodput has one definition, and it is here.

Goodput = (work + evaluation - lost) / wall time: the same for a live counter, a report and a
simulated run. Nanoseconds are integers, so that the parts sum to the whole exactly.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from harness.phases import PRODUCTIVE, Phase
from harness.timeline import Timeline


class Totals(Protocol):
    """What a split is made of; a `Fold` has all of it."""

    @property
    def totals(self) -> Mapping[Phase, int]:
        """Nanoseconds by phase."""

    @property
    def lost_ns(self) -> int:
        """Of work and evaluation: what the run went back behind."""

    @property
    def cut_short_ns(self) -> int:
        """Of the save stalls: those that a failure ended."""


@dataclass(frozen=True, slots=True)
class Split:
    """The wall time of a run, divided."""

    state_ns: Mapping[Phase, int]
    """By phase; sums to `wall_ns`."""
    lost_ns: int
    """Of work and evaluation: what the run went back behind."""
    cut_short_ns: int
    """Of the save stalls: those that a failure ended."""

    @property
    def wall_ns(self) -> int:
        """All of it."""
        return sum(self.state_ns.values())

    @property
    def kept_ns(self) -> int:
        """Work and evaluation that the run still holds."""
        return sum(self.state_ns[phase] for phase in PRODUCTIVE) - self.lost_ns

    @property
    def goodput(self) -> float:
        """The share of the wall time that was kept; 0 for a run that has not begun."""
        return self.kept_ns / self.wall_ns if self.wall_ns else 0.0

    def classes_ns(self) -> dict[str, int]:
        """Every nanosecond in exactly one class: kept, lost, or the phase that it was spent in."""
        rest = {p.value: ns for p, ns in self.state_ns.items() if p not in PRODUCTIVE}
        return {"kept": self.kept_ns, "lost": self.lost_ns, **rest}

    def coarse_ns(self) -> dict[str, int]:
        """The same in four kinds, as in the textbook picture of a job: they sum to `wall_ns` too."""
        stalls_ns = self.state_ns[Phase.SAVE_STALL]
        work = self.kept_ns
        checkpoint = stalls_ns - self.cut_short_ns
        lost = self.lost_ns + self.state_ns[Phase.INTERRUPTED] + self.cut_short_ns
        rest = self.wall_ns - work - checkpoint - lost
        return {"work": work, "checkpoint": checkpoint, "lost": lost, "restart": rest}


def split(of: Timeline | Totals) -> Split:
    """Where the time went, of a whole timeline or of a fold as it stands."""
    totals: Totals = of.account if isinstance(of, Timeline) else of
    return Split(dict(totals.totals), totals.lost_ns, totals.cut_short_ns)
