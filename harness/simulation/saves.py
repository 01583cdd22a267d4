"""Which saved states a simulated job could resume from. Decided here and nowhere else."""

from dataclasses import dataclass, field
from typing import NamedTuple

from harness.events import Tier


class Saved(NamedTuple):
    """A saved state."""

    step: int
    tier: Tier | None
    """None: the beginning, which is always there."""
    attempt: int | None
    taken_s: float
    """The instant whose state it is."""
    durable_s: float
    worked_s: float = 0.0
    """Work in it, by the clock."""
    useful_s: float = 0.0
    """The same as it would have taken without stragglers."""


BEGINNING = Saved(0, None, None, -1.0, -1.0)


@dataclass(slots=True)
class Saves:
    """The states of a run that were saved and may be wanted again, the oldest first."""

    states: list[Saved] = field(default_factory=lambda: [BEGINNING])

    def add(self, saved: Saved) -> None:
        """A state was saved."""
        self.states.append(saved)

    @property
    def newest(self) -> Saved:
        """The last one."""
        return self.states[-1]

    @property
    def newest_stored(self) -> Saved:
        """The last one that is not in memory, durable or about to be."""
        return next(saved for saved in reversed(self.states) if saved.tier is not Tier.MEMORY)

    def prune(self, now_s: float) -> None:
        """Drop what is older than the newest state that is durable in storage."""
        stored = (
            place
            for place in range(len(self.states) - 1, 0, -1)
            if self.states[place].tier is Tier.STORAGE and self.states[place].durable_s <= now_s
        )
        del self.states[: next(stored, 0)]

    def fail(self, at_s: float, *, memory_stands: bool) -> list[Saved]:
        """A failure leaves what is durable, and memory only where that stands; gives what it takes."""
        before = self.states
        self.states = [
            saved
            for saved in before
            if saved.durable_s <= at_s and (memory_stands or saved.tier is not Tier.MEMORY)
        ]
        return [saved for saved in before if saved.durable_s > at_s]

    def reject_after(self, instant_s: float) -> list[Saved]:
        """Drop the states taken after `instant_s`; gives them, the newest first."""
        rejected = [saved for saved in self.states if saved.taken_s > instant_s]
        self.states = [saved for saved in self.states if saved.taken_s <= instant_s]
        return rejected[::-1]
