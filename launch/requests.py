"""What people ask of a running launcher: SIGINT to stop, SIGTERM or SIGHUP to save and leave.

What a rank was told is taken for what the job was told. Both give the ranks a time; a second SIGINT ends it.
"""

import signal
import time
from collections.abc import Callable

from harness import events
from harness.recorder import Recorder
from launch import witness
from launch.agent import Agent

INTERRUPT_S = 3.0
"""How long ranks have to leave after SIGINT."""


class Requests:
    """What was asked so far, and until when it is waited for."""

    leave_until: float | None = None
    """Time (monotonic, in s) at which ranks are killed after SIGINT; None if nobody asked."""
    drain_until: float | None = None
    """The same after SIGTERM."""

    def __init__(self, recorder: Recorder, grace_s: float, say: Callable[[str], None]) -> None:
        self._recorder = recorder
        self._say = say
        self.grace_s = grace_s

    @property
    def left_s(self) -> float:
        """What is left of the time that was given to save and leave; 0 if nobody asked for that, or for haste."""
        if self.drain_until is None or self.leave_until is not None:
            return 0.0
        return max(0.0, self.drain_until - time.monotonic())

    def heed(self, agent: Agent, number: int) -> None:
        """Pass on to the ranks what signal `number` asks for."""
        if number == signal.SIGINT:
            self._interrupt(agent)
        elif self.drain_until is None:
            self._drain(agent, signal.Signals(number).name)

    def heed_idle(self, number: int) -> None:
        """The same while no rank is there to be told."""
        if number == signal.SIGINT:
            self.leave_until = time.monotonic()
        elif self.drain_until is None:
            self.drain_until = time.monotonic() + self.grace_s
            self._recorder.write(events.DrainRequested(self.grace_s))
            self._say(f"{signal.Signals(number).name}: no rank is at work")

    def listen(self, agent: Agent) -> None:
        """Take it for asked of the job if a rank was told to leave."""
        if self.drain_until is None and (by := agent.drain_request()):
            self._begin_drain(by, self.grace_s)

    def _interrupt(self, agent: Agent) -> None:
        if self.leave_until is not None:
            self.leave_until = time.monotonic()
            return
        self.leave_until = time.monotonic() + INTERRUPT_S
        self._say(f"interrupted: ranks have {INTERRUPT_S:g} s to leave; once more kills them now")
        agent.signal(signal.SIGINT)

    def _begin_drain(self, by: str, grace_s: float) -> None:
        self.drain_until = time.monotonic() + grace_s
        self._recorder.write(events.DrainRequested(grace_s))
        self._say(f"{by}: ranks have {grace_s:g} s to save and leave")

    def _drain(self, agent: Agent, name: str) -> None:
        self._begin_drain(name, self.grace_s)
        if witness.any_joined(agent.run_dir, agent.attempt, agent.ranks.world_size):
            agent.request_drain()
        else:  # a script without the library knows the signal at best
            agent.signal(signal.SIGTERM)
