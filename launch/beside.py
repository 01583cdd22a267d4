"""Keeps alive what stands beside the job: a companion that dies is started again, and that is said.

What is decided lies in `respawn`. Training never waits for a companion, and never ends because of one.
"""

import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import events
from harness.recorder import Recorder
from launch import companions, processes, respawn
from launch.companions import Companion
from launch.exits import ending
from launch.respawn import Again, GivenUp
from launch.watch import Watch


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a companion is started."""

    name: str
    command: Sequence[str]
    outlives: bool = False
    """It sees to its own end when the launcher dies."""
    may_finish: bool = False
    """Exit code 0 says that it has nothing left to do."""


@dataclass(slots=True)
class _Post:
    """A companion's place, and who held it."""

    recipe: Recipe
    holder: Companion | None = None
    since_s: float = 0.0
    lived_s: list[float] = field(default_factory=list)
    due_s: float | None = None
    """When the next one is started; None if none is to be."""
    died_of: str = ""
    stopped_since_s: float | None = None
    """Since when its holder is seen stopped; None if it is not."""


class Beside:
    """The companions of one launcher; `look` as often as something happens, or a time has passed."""

    def __init__(
        self,
        recipes: Iterable[Recipe],
        log: Path,
        watch: Watch,
        recorder: Recorder,
        say: Callable[[str], None],
        complain: Callable[[str], None],
    ) -> None:
        self._posts = {recipe.name: _Post(recipe) for recipe in recipes}
        self._log = log
        self._watch = watch
        self._recorder = recorder
        self._say = say
        self._complain = complain

    def start(self) -> None:
        """Start them all."""
        for post in self._posts.values():
            self._fill(post)

    def look(self, needed: Container[str] | None = None) -> None:
        """Notice who died, and start again whoever is due; of `needed` alone, if that is given."""
        for name, post in self._posts.items():
            if post.holder is not None:
                self._end_stopped(post, post.holder)
                if post.holder.process.poll() is not None:
                    self._bury(post, post.holder)
            wanted = needed is None or name in needed
            is_due = post.due_s is not None and time.monotonic() >= post.due_s
            if wanted and is_due and self._fill(post):
                self._recorder.write(events.HelperRestarted(name, post.died_of))
                self._say(f"the {name} ended with {post.died_of}: started again")

    def pids(self) -> set[int]:
        """Processes of those that live."""
        holders = [post.holder for post in self._posts.values()]
        return {holder.process.pid for holder in holders if holder is not None}

    def has_given_up(self, name: str) -> bool:
        """True for one that is not there and will not be again."""
        post = self._posts.get(name)
        return post is None or (post.holder is None and post.due_s is None)

    def stop(self, name: str, timeout_s: float = companions.STOP_TIMEOUT_S) -> None:
        """End one for good, if there is one.

        It has `timeout_s` for what it has in hand, and less if somebody asks the launcher to leave.
        """
        post = self._posts.pop(name, None)
        if post is None or post.holder is None:
            return
        process = post.holder.process
        process.terminate()
        until_s = time.monotonic() + timeout_s
        while process.poll() is None and (left_s := until_s - time.monotonic()) > 0:
            _, signals = self._watch.wait(left_s)
            self.look(needed=())
            if signals:
                break
        self._watch.remove(post.holder)
        post.holder.end()

    def stop_all(self) -> None:
        """End all that are left."""
        for name in list(self._posts):
            self.stop(name)

    def _fill(self, post: _Post) -> bool:
        """Start the next one; False if that could not be."""
        post.due_s, post.since_s = None, time.monotonic()
        recipe = post.recipe
        try:
            with self._log.open("ab") as log:
                holder = companions.start(
                    recipe.name, recipe.command, log, outlives=recipe.outlives
                )
        except OSError as error:  # no process, no descriptor, no room: that may pass
            self._judge(post, str(error))
            return False
        post.holder = holder
        self._watch.add(holder, recipe.name)
        return True

    def _end_stopped(self, post: _Post, holder: Companion) -> None:
        """Kill one that has been stopped for too long; what follows is as for any death."""
        if processes.state(holder.process.pid) != processes.STOPPED:
            post.stopped_since_s = None
            return
        now_s = time.monotonic()
        post.stopped_since_s = post.stopped_since_s or now_s
        if now_s - post.stopped_since_s >= respawn.STOPPED_S:
            processes.end(holder.process)

    def _bury(self, post: _Post, dead: Companion) -> None:
        post.holder = None
        self._watch.remove(dead)
        status = dead.process.returncode
        dead.end()
        stopped, post.stopped_since_s = post.stopped_since_s is not None, None
        if status != 0 or not post.recipe.may_finish:
            why = f", after it had been stopped for {respawn.STOPPED_S:g} s" if stopped else ""
            self._judge(post, ending(status) + why)

    def _judge(self, post: _Post, died_of: str) -> None:
        now_s = time.monotonic()
        post.lived_s.append(now_s - post.since_s)
        post.died_of = died_of
        match respawn.decide(post.lived_s):
            case Again(wait_s):
                post.due_s = now_s + wait_s
            case GivenUp(reason):
                self._complain(
                    f"the {post.recipe.name} ended with {died_of}, and {reason}: training goes on"
                    f" without it; see {self._log}"
                )
