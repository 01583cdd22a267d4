"""The fork server at its post: told to go on where a signal stopped it, replaced where it died.

One whose imports hang shows no rank that could be watched, so it has a limit of its own.
"""

import time
from collections.abc import Callable, Sequence

from harness import events
from harness.recorder import Recorder
from launch.agent import Agent
from launch.beside import Beside
from launch.exits import ending
from launch.progress import ATTENTION_NS, NS
from launch.spawner import Spawner
from launch.watch import Watch

FORK_SERVER = "fork server"


class ForkServers:
    """Sees to the fork server of an agent, whichever it has."""

    def __init__(
        self,
        *,
        renewed: Callable[[Spawner, Sequence[float]], Spawner],
        limit_s: float | None,
        beside: Beside,
        recorder: Recorder,
        watch: Watch,
        say: Callable[[str], None],
    ) -> None:
        self._renewed = renewed
        self._limit_s = limit_s
        self._beside = beside
        self._recorder = recorder
        self._watch = watch
        self._say = say
        self._since_s = self._looked_s = time.monotonic()
        self._imports_s = 0.0
        self._lived_s: list[float] = []

    def post(self, spawner: Spawner) -> None:
        """Have `spawner` waited for, and no longer than it may take."""
        spawner.limit_s = self._limit_s
        self._watch.add(spawner, FORK_SERVER)
        self._since_s = self._looked_s = time.monotonic()
        self._imports_s = 0.0

    def look(self, spawner: Spawner) -> None:
        """Have it go on if a signal stopped it; give it up if its imports take too long."""
        if spawner.wake():
            self._say("the fork server had been stopped by a signal: it was told to go on")
        now_s = time.monotonic()
        if not spawner.is_ready:
            # No longer than a look takes: a launcher that slept did not wait.
            self._imports_s += min(now_s - self._looked_s, ATTENTION_NS / NS)
            if self._limit_s is not None and self._imports_s > self._limit_s:
                spawner.give_up(
                    "a fork server was killed: what it was to import did not come back within"
                    f" {self._limit_s:g} s (--startup-limit)"
                )
        self._looked_s = now_s

    def renew(self, agent: Agent) -> None:
        """Put another one in the place of one that is lost. Raises `UnkillableError`."""
        self._watch.remove(agent.spawner)
        status = agent.spawner.close()
        # What the dead one left behind, all of it ours now; itself, if it does not die.
        agent.kill_orphans(self._beside.pids())
        self._lived_s.append(time.monotonic() - self._since_s)
        agent.spawner = self._renewed(agent.spawner, self._lived_s)
        self.post(agent.spawner)
        died_of = "an unknown end" if status is None else ending(status)
        self._recorder.write(events.HelperRestarted(FORK_SERVER, died_of))
