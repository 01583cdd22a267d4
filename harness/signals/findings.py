"""What is known of the health of training. All of it bounded, all of it from the log.

Counts are of steps that were taken, whether the run kept them or went back behind them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.events import (
    Entry,
    GradientsAudited,
    HealthObserved,
    LossSpiked,
    NonfiniteFound,
    Place,
    Reaction,
    ReplicasCompared,
    rank_of,
)

_RECENT = 64
"""Ranks tell of one step within fewer steps than this of each other."""


@dataclass(frozen=True, slots=True)
class Nonfinite:
    """A number that is none."""

    step: int
    attempt: int
    rank: int | None
    """Whose loss; None for the gradient, which all ranks share."""
    place: Place
    reaction: Reaction


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A comparison between ranks that came out unequal."""

    step: int
    attempt: int
    groups: Sequence[str]
    ranks: Sequence[int]
    """The odd ones; none where nobody could tell."""


@dataclass(slots=True)
class Comparisons:
    """How often ranks compared what ought to be equal, and what came of it."""

    made: int = 0
    unequal: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    """The last so many."""

    def count(self, event: ReplicasCompared | GradientsAudited, attempt: int, keep: int) -> None:
        """They did again."""
        self.made += 1
        if event.groups:
            self.unequal += 1
            found = Mismatch(event.step, attempt, event.groups, event.ranks)
            self.mismatches = [*self.mismatches, found][-keep:]


@dataclass(slots=True)
class Findings:
    """The last readings, and everything that was found."""

    health_step: int | None = None
    """The step of the last `HealthObserved`, and its figures."""
    grad_norm: float | None = None
    clip_norm: float | None = None
    update_to_weight: Mapping[str, float] = field(default_factory=dict)
    clips: int = 0
    """Steps that clipped by `job.clip`, as far as they were told of …"""
    clipped: int = 0
    """… and those whose gradient was longer than it might be."""
    nonfinite_steps: int = 0
    nonfinite: list[Nonfinite] = field(default_factory=list)
    """The last so many."""
    replicas: Comparisons = field(default_factory=Comparisons)
    """Of the weights that DDP keeps equal."""
    audits: Comparisons = field(default_factory=Comparisons)
    """Of gradients, each made by two ranks."""
    spikes: int = 0
    last_spike: LossSpiked | None = None
    recent: list[tuple[int, int]] = field(default_factory=list)
    """Attempt and step of the last that counted in `nonfinite_steps`."""

    def observe(self, entry: Entry, keep: int) -> None:
        """Take in an entry, if it is about health; the last `keep` findings are listed."""
        match entry.event:
            case HealthObserved() as event:
                self._read(event)
            case NonfiniteFound() as event:
                self._find(event, entry.attempt, rank_of(entry.writer), keep)
            case LossSpiked() as event:
                self.spikes += 1
                self.last_spike = event
            case ReplicasCompared() as event:
                self.replicas.count(event, entry.attempt, keep)
            case GradientsAudited() as event:
                self.audits.count(event, entry.attempt, keep)
            case _:
                pass

    def _read(self, event: HealthObserved) -> None:
        self.health_step, self.grad_norm = event.step, event.grad_norm
        self.clip_norm, self.update_to_weight = event.clip_norm, event.update_to_weight
        self.clips += max(0, event.clips)
        self.clipped += max(0, event.clipped)

    def _find(self, event: NonfiniteFound, attempt: int, rank: int | None, keep: int) -> None:
        """A step counts once, however many ranks tell of it."""
        whose = rank if event.place is Place.LOSS else None
        found = Nonfinite(event.step, attempt, whose, event.place, event.reaction)
        self.nonfinite = [*self.nonfinite, found][-keep:]
        if (attempt, event.step) not in self.recent:
            self.nonfinite_steps += 1
            self.recent = [*self.recent, (attempt, event.step)][-_RECENT:]
