"""Looks at the ranks of an attempt, at a modest rate, and says when they hang.

What is decided lies in `watchdog`. A script that does not use the library shows nothing, so nothing of
it is watched, and that is said once.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from harness import slots
from harness.rundir import RunDir
from harness.slots import Mark, Slot
from launch import progress, watchdog, witness
from launch.progress import NS, Watched
from launch.watchdog import Alarm, Alive, Limits


class Lookout:
    """Watches one attempt after the other; `limits` None watches nothing."""

    def __init__(self, limits: Limits | None, say: Callable[[str], None]) -> None:
        self._limits = limits
        self._say = say
        self._watched: Watched | None = None
        self._attempt = 0
        self._alarms: Counter[int] = Counter()
        self._said = False
        self.done: Sequence[int] = ()
        """Ranks that were seen to be done and to live: no limit is for them."""

    @property
    def startup_s(self) -> float | None:
        """How long it may take until a rank joins; None if nothing is watched."""
        return None if self._limits is None else self._limits.startup_ns / NS

    def attempt_begins(self, attempt: int, ranks: int) -> None:
        """Forget the ranks of the attempt before."""
        self._attempt, self.done = attempt, ()
        self._watched = progress.begin(time.monotonic_ns(), ranks, self._watched)

    def due_s(self) -> float | None:
        """Seconds until the next look; None if there will be none."""
        if self._limits is None or self._watched is None:
            return None
        return watchdog.LOOK_S - (time.monotonic_ns() - self._watched.looked_ns) / NS

    def look(self, run_dir: RunDir, alive: Sequence[int]) -> Alarm | None:
        """The alarm, if the ranks that are `alive` hang; nothing if a look is not due yet."""
        due_s = self.due_s()
        if self._limits is None or self._watched is None or due_s is None or due_s > 0:
            return None
        found = [slots.read(run_dir.slot(rank)) for rank in range(len(self._watched.ranks))]
        watched = progress.look(self._watched, time.monotonic_ns(), self._attempt, found)
        self._watched = watched
        self.done = [rank for rank in alive if _is_done(watched.ranks[rank].slot)]
        living = {rank: watched.ranks[rank] for rank in alive}
        match watchdog.decide(watched.clock_ns, living, watched.steps, self._limits, self._alarms):
            case Alarm() as alarm if self._can_tell(run_dir, watched, alarm):
                self._note(watched, watched.ranks[alarm.suspects[0]].slot)
                return alarm
            case Alarm() | Alive():
                return None

    def _note(self, watched: Watched, suspect: Slot | None) -> None:
        """Remember an alarm in a normal step: whether that is slow or stuck, more patience tells."""
        if suspect is not None and watchdog.in_normal_step(suspect, watched.steps):
            self._alarms[suspect.step] += 1

    def _can_tell(self, run_dir: RunDir, watched: Watched, alarm: Alarm) -> bool:
        """False where no rank ever joined: there is nothing to tell a hang by."""
        if any(it.slot is not None for it in watched.ranks) or witness.uses_library(run_dir):
            return True
        if not self._said:
            self._said = True
            after_s = alarm.silent_ns / NS
            self._say(f"no rank has called harness.join after {after_s:.0f} s: hangs go unnoticed")
        return False


def _is_done(slot: Slot | None) -> bool:
    return slot is not None and slot.mark is Mark.FINISHED
