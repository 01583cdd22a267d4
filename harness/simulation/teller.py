"""Puts what happens to a simulated job into words: entries of a log, in order.

One writer tells all of it, for entries of one instant keep their order in its file alone.
"""

from dataclasses import dataclass, field

from harness.events import (
    AttemptStarted,
    Entry,
    Event,
    SaveCommitted,
    SaveFailed,
    StepFinished,
    StepTimed,
    Tier,
)
from harness.simulation.saves import Saved

WRITER = "simulate"
RANK = "rank-0"
"""Whose own time and waiting is told, where there are stragglers."""


@dataclass(slots=True)
class Teller:
    """What was told so far, and what is sure to be told later: commits under way."""

    save_bytes: int = 0
    heard: bool = True
    """False where nobody listens, and only what it says is done without."""
    attempt: int = 0
    step: int = 0
    """The last one that is said to be finished."""
    told: list[Entry] = field(default_factory=list)
    """Not handed out yet."""
    committing: list[Saved] = field(default_factory=list)
    _sequence: int = 0

    def say(self, at_s: float, event: Event) -> None:
        """`event` happens at `at_s`; commits that are due before it come first."""
        while self.committing and self.committing[0].durable_s <= at_s:
            saved = self.committing.pop(0)
            assert saved.tier is not None
            self._put(saved.durable_s, SaveCommitted(saved.step, saved.tier, self.save_bytes))
        self.attempt += isinstance(event, AttemptStarted)
        self._put(at_s, event)

    def finish_step(self, at_s: float) -> None:
        """The next step is done."""
        self.step += 1
        self.say(at_s, StepFinished(self.step, self.step - 1, self.step))

    def time_step(self, at_s: float, own_s: float, whole_s: float) -> None:
        """How the last step went on a device of ordinary speed."""
        timed = StepTimed(self.step, nanoseconds(own_s), nanoseconds(whole_s - own_s))
        self._put(at_s, timed, RANK)

    def commit(self, saved: Saved) -> None:
        """A save will be durable in time."""
        self.committing.append(saved)
        self.committing.sort(key=lambda one: one.durable_s)

    def give_up(self, failed_s: float, told_s: float) -> None:
        """The saves that are not durable when the job fails never will be; the others are."""
        ended = [saved for saved in self.committing if saved.durable_s > failed_s]
        self.committing = [saved for saved in self.committing if saved.durable_s <= failed_s]
        for saved in ended:
            reason = "the job failed before it was durable"
            self.say(told_s, SaveFailed(saved.step, saved.tier or Tier.STORAGE, reason))

    def durable_s(self, now_s: float) -> float:
        """When everything under way will be durable."""
        return max([now_s, *(saved.durable_s for saved in self.committing)])

    def _put(self, at_s: float, event: Event, writer: str = WRITER) -> None:
        if not self.heard:
            return
        entry = Entry(nanoseconds(at_s), self.attempt, self._sequence, event, writer)
        self.told.append(entry)
        self._sequence += 1


def nanoseconds(duration_s: float) -> int:
    """Seconds, as the log has them."""
    return round(duration_s * 1e9)
