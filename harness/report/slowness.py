"""What a report says of slow ranks, and of a job that is slow as a whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.report.spread import counted, duration, seconds
from harness.signals.tally import Episode, Stragglers


@dataclass(frozen=True, slots=True)
class Slowness:
    """Who was waited for."""

    compared: int = 0
    """How often all ranks were compared."""
    waited_ns: int = 0
    named: int = 0
    """How often a rank was named."""
    episodes: Sequence[Episode] = ()
    slowdown: float | None = None
    """Time of a step in the end, stragglers apart, over the best of the run."""
    is_slow: bool = False
    """By more than chance can make of it."""

    @classmethod
    def of(cls, tally: Stragglers) -> "Slowness":
        """What the log came to."""
        return cls(
            tally.compared,
            tally.waited_ns,
            tally.named,
            tuple(tally.episodes),
            tally.reference.slowdown,
            tally.is_slow,
        )

    def lines(self, ranks: int) -> list[str]:
        """For people; nothing of a single rank that is as fast as ever."""
        told: list[str] = []
        if self.compared and ranks > 1:
            told.append(
                f"slowest ranks: waited for {duration(self.waited_ns)} in all; {self._named()}"
            )
        if self.slowdown is not None and self.is_slow:
            told.append(
                f"all ranks: a step took {self.slowdown:.2f} times as long in the end as at best"
            )
        return told

    def _named(self) -> str:
        if not self.named:
            return "none of them named a straggler"
        worst: dict[int, Episode] = {}
        for one in self.episodes:
            if one.rank not in worst or one.share > worst[one.rank].share:
                worst[one.rank] = one
        ordered = sorted(worst.values(), key=lambda one: -one.share)
        who = [
            f"rank {one.rank} ({one.lag.value}, +{duration(one.delay_ns)} a step, {one.share:.0%})"
            for one in ordered[:3]
        ]
        more = f" and {counted(len(ordered) - 3, 'other')}" if len(ordered) > 3 else ""
        return f"named {counted(self.named, 'time')}: {', '.join(who)}{more}"

    def to_json(self) -> dict[str, Any]:
        """In seconds."""
        return {
            "compared": self.compared,
            "waited_s": seconds(self.waited_ns),
            "named": self.named,
            "records": [
                {
                    "rank": one.rank,
                    "cause": one.lag.value,
                    "since_step": one.since_step,
                    "lasted_s": None
                    if one.until_ns is None
                    else seconds(one.until_ns - one.since_ns),
                    "delay_s": seconds(one.delay_ns),
                    "share": one.share,
                }
                for one in self.episodes
            ],
            "slowdown": self.slowdown,
            "all_ranks_slow": self.is_slow,
        }
