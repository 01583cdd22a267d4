"""Which steps and how much productive time the run still holds, and what it lost by going back.

Lost is decided by where training resumed. Time is charged back to the mark of the step resumed
from: marks are kept for step 0, for saves that exist, and for the last few thousand steps.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from operator import itemgetter

RECENT_STEPS = 4096
"""How many of the last steps keep their marks, at least."""
SAVED_STEPS = 4096
"""How many saves keep their marks, where nothing ever deletes one."""

Mark = tuple[int, int, int]
"""A finished step, the productive time held when it finished, and that instant."""

_step = itemgetter(0)


@dataclass(frozen=True, slots=True)
class Rollback:
    """What going back to an earlier step cost."""

    since_ns: int
    """Productive time from here on is lost."""
    lost_ns: int
    lost_steps: int


@dataclass(slots=True)
class Ledger:
    """Steps and productive time, held and lost. Every count in it only rises."""

    step: int = 0
    """The last finished step that the run still holds."""
    highest: int = 0
    """The furthest that it ever came."""
    useful_steps: int = 0
    """Steps done for the first time."""
    redone_steps: int = 0
    """Steps done again after having been lost."""
    lost_steps: int = 0
    lost_ns: int = 0
    recent: list[Mark] = field(default_factory=lambda: [(0, 0, 0)])
    saved: dict[int, tuple[int, Mark]] = field(default_factory=dict)
    """By step: the attempt that saved it, and its mark."""

    def finish(self, step: int, at_ns: int, productive_ns: int) -> bool:
        """Step `step` is done, and `productive_ns` in all so far; False if it had been done before."""
        useful = step > self.highest
        if useful:
            self.highest = step
            self.useful_steps += 1
        else:
            self.redone_steps += 1
        self.step = step
        self.recent.append((step, productive_ns - self.lost_ns, at_ns))
        if len(self.recent) > 2 * RECENT_STEPS:
            del self.recent[1 : RECENT_STEPS + 1]
        return useful

    def complete(self, at_ns: int, productive_ns: int) -> None:
        """No step follows: what was done since the last one (a digest, an evaluation) goes with it."""
        self.recent[-1] = (self.recent[-1][0], productive_ns - self.lost_ns, at_ns)

    def finish_lost(self, step: int) -> bool:
        """Step `step` of an attempt that others have gone on without: done, and lost at once."""
        self.lost_steps += 1
        if step > self.highest:
            self.highest = step
            self.useful_steps += 1
            return True
        self.redone_steps += 1
        return False

    def save(self, step: int, attempt: int) -> None:
        """A save of `step` began: its mark stays until it fails or is deleted."""
        mark = self.recent[self._count(step) - 1]
        if mark[0] == step:
            self.saved[step] = (attempt, mark)
            if len(self.saved) > SAVED_STEPS:
                del self.saved[min(self.saved)]

    def forget(self, step: int, attempt: int) -> None:
        """The state of `step` that `attempt` saved does not exist, or no longer."""
        if step in self.saved and self.saved[step][0] == attempt:
            del self.saved[step]

    def resume(self, step: int, at_ns: int, productive_ns: int) -> Rollback:
        """Training goes on from `step`: what the run did beyond it is lost."""
        mark = self._mark(step)
        lost_ns = productive_ns - self.lost_ns - mark[1]
        lost_steps = max(0, self.step - step)
        self.lost_ns += lost_ns
        self.lost_steps += lost_steps
        self.step = step
        del self.recent[self._count(step) :]
        self.saved = {saved: kept for saved, kept in self.saved.items() if saved <= step}
        if self.recent[-1][0] != step:
            self.recent.append((step, mark[1], mark[2] if mark[0] == step else at_ns))
        return Rollback(mark[2], lost_ns, lost_steps)

    def _mark(self, step: int) -> Mark:
        """The mark of `step`, or of the nearest step before it that has one."""
        candidates = [mark for _, mark in self.saved.values() if mark[0] <= step]
        return max([self.recent[self._count(step) - 1], *candidates], key=_step)

    def _count(self, step: int) -> int:
        """How many recent marks are at or before `step`."""
        return bisect_right(self.recent, step, key=_step)
