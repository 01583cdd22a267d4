"""Between two attempts: the wait, a fork server, a number. Nothing of it is deaf to what people ask.

Companions are kept alive and the run is shown meanwhile, as while an attempt runs.
"""

import time
from collections.abc import Callable
from typing import Protocol

from harness.events import Outcome
from launch import claims
from launch.agent import Agent
from launch.beside import Beside
from launch.claim import Claim
from launch.ends import Again, Ending
from launch.processes import UnkillableError
from launch.requests import Requests
from launch.servers import ForkServers
from launch.spawner import ForkServerLostError
from launch.watch import Watch

TICK_S = 0.5
"""How often the live view moves, and a rank that left without joining is looked at again."""


class View(Protocol):
    """Shows how the run goes."""

    def poll(self) -> None:
        """Show the present."""


class Between:
    """Leads an agent from one attempt to the next."""

    def __init__(
        self,
        *,
        claim_attempt: Callable[[], int],
        servers: ForkServers,
        watch: Watch,
        requests: Requests,
        beside: Beside,
        view: View,
        say: Callable[[str], None],
    ) -> None:
        self._claim_attempt = claim_attempt
        self._servers = servers
        self._watch = watch
        self._requests = requests
        self._beside = beside
        self._view = view
        self._say = say
        self._claims_failed = 0

    def lead(self, agent: Agent, wait_s: float) -> int | Again | Ending:
        """The next attempt's number, once it is time and a fork server is there; or what follows instead."""
        try:
            return self._pause(agent, wait_s) or self._claimed(agent)
        except UnkillableError as error:
            return Ending(Outcome.FAILED, str(error))

    def _pause(self, agent: Agent, wait_s: float) -> Ending | None:
        """Wait so long, and for a fork server. Raises `UnkillableError`."""
        until_s = time.monotonic() + wait_s
        while (left_s := until_s - time.monotonic()) > 0 or not agent.spawner.is_ready:
            if (end := self._listen(min(TICK_S, left_s) if left_s > 0 else TICK_S)) is not None:
                return end
            try:
                self._tend(agent)
            except ForkServerLostError:
                if not agent.spawner.is_ready:
                    break  # one that cannot live fails the next attempt, and attempts are counted
                self._servers.renew(agent)
        return None

    def _claimed(self, agent: Agent) -> int | Again | Ending:
        claim = Claim(self._claim_attempt)
        self._watch.add(claim, "claim")
        try:
            while (end := self._listen(TICK_S)) is None and not claim.is_over:
                try:
                    self._tend(agent)
                except ForkServerLostError:
                    self._watch.remove(agent.spawner)  # the attempt will fail by it
        finally:
            self._watch.remove(claim)
            claim.leave()
        if end is not None:
            return end
        try:
            number = claim.number()
        except (OSError, ValueError) as error:
            return self._unclaimed(error)
        self._claims_failed = 0
        return number

    def _unclaimed(self, error: Exception) -> Ending | Again:
        self._claims_failed += 1
        following = claims.decide(self._claims_failed, error)
        if isinstance(following, Again):
            soon = f"tried again in {following.wait_s:g} s"
            self._say(f"no attempt can be claimed in the storage: {error}; {soon}")
        return following

    def _listen(self, within_s: float) -> Ending | None:
        """Wait until something happens; an end if that is asked for."""
        _, signals = self._watch.wait(within_s)
        for number in signals:
            self._requests.heed_idle(number)
        if self._requests.leave_until is not None:
            return Ending(Outcome.INTERRUPTED)
        if self._requests.drain_until is not None:
            reason = "no rank was at work: what was committed before stands"
            return Ending(Outcome.DRAINED, reason)
        return None

    def _tend(self, agent: Agent) -> None:
        """See to all that is there without ranks. Raises `ForkServerLostError`."""
        self._beside.look()
        self._servers.look(agent.spawner)
        self._view.poll()
        agent.take_exits()
