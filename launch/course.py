"""One life of the launcher: attempts, one after the other, until the job ends one way or another.

What is decided lies in `exits`, `causes` and `restarts`; here it is done, in the right order, and
written into the log.
"""

import time
from collections.abc import Callable, Sequence
from typing import assert_never

from harness import events
from harness.events import Outcome
from harness.points import Point, reach
from harness.recorder import Recorder
from launch import causes, ends, stacks, witness
from launch.aftermath import Aftermath
from launch.agent import Agent, StartError
from launch.beside import Beside
from launch.between import TICK_S, Between, View
from launch.causes import Blame
from launch.companions import SAVER
from launch.ends import Again, End, Ending, GraceExceeded, Hung, Interrupted, Lost
from launch.exits import Drained, Exit, Failed, Finished, Going
from launch.lookout import Lookout
from launch.processes import UnkillableError
from launch.requests import Requests
from launch.servers import ForkServers
from launch.spawner import ForkServerLostError, RefusedError, Spawner
from launch.watch import Watch

SETTLE_S = 0.2
"""How long a failure that looks like the loss of a peer waits for that peer's own."""


class Course:
    """Leads an agent from the first attempt to the end."""

    ending: Ending
    """Set when `lead` returns."""

    def __init__(
        self,
        *,
        renewed: Callable[[Spawner, Sequence[float]], Spawner],
        claim_attempt: Callable[[], int],
        recorder: Recorder,
        watch: Watch,
        requests: Requests,
        aftermath: Aftermath,
        beside: Beside,
        lookout: Lookout,
        view: View,
        say: Callable[[str], None],
    ) -> None:
        self._recorder = recorder
        self._watch = watch
        self._requests = requests
        self._aftermath = aftermath
        self._beside = beside
        self._lookout = lookout
        self._view = view
        self._say = say
        self._settle_until: float | None = None
        self._servers = ForkServers(
            renewed=renewed,
            limit_s=lookout.startup_s,
            beside=beside,
            recorder=recorder,
            watch=watch,
            say=say,
        )
        self._between = Between(
            claim_attempt=claim_attempt,
            servers=self._servers,
            watch=watch,
            requests=requests,
            beside=beside,
            view=view,
            say=say,
        )

    def lead(self, agent: Agent) -> bool:
        """Start attempts until the job ends; True if it is done."""
        self._servers.post(agent.spawner)
        outcome = self._attempt(agent, 0.0)
        while isinstance(outcome, Again):
            outcome = self._attempt(agent, outcome.wait_s)
        self.ending = ending = outcome
        return ending.outcome is Outcome.FINISHED

    def _attempt(self, agent: Agent, wait_s: float) -> Ending | Again:
        """One attempt, from the wait before it to its last process."""
        number = self._between.lead(agent, wait_s)
        if not isinstance(number, int):
            return number
        reach(Point.ATTEMPT)
        end: End
        try:
            self._begin(agent, number)
            end = self._follow(agent)
        except StartError as error:
            return Ending(Outcome.FAILED, str(error))
        except (ForkServerLostError, RefusedError) as error:
            end = Lost(str(error))
        fault = self._declare(agent, end)
        try:
            self._stop(agent)
        except UnkillableError as error:
            return Ending(Outcome.FAILED, str(error))
        self._recorder.write(events.RanksStopped())
        stacks.forget_empty(agent.run_dir.incident(agent.attempt))
        return self._conclude(agent, end, fault)

    def _begin(self, agent: Agent, attempt: int) -> None:
        world_size = agent.ranks.world_size
        self._settle_until = None
        self._recorder.attempt = attempt
        self._recorder.write(events.AttemptStarted(world_size))
        self._aftermath.attempt_begins()
        if self._beside.has_given_up(SAVER):
            agent.do_without_saver()
        agent.start(attempt)
        self._lookout.attempt_begins(attempt, world_size)
        cold = agent.spawner.cold
        self._recorder.write(events.RanksSpawned(world_size, warm=not cold, reason=cold))
        how = f"cold: {cold}" if cold else "warm"
        self._say(f"attempt {attempt}: {counted(world_size)} started {how}")

    # ── while it runs ───────────────────────────────────────────────────────────────────────

    def _follow(self, agent: Agent) -> End:
        """Watch the attempt until its end is clear. Raises `ForkServerLostError`."""
        while True:
            _, signals = self._watch.wait(self._patience_s())
            agent.take_exits()
            for number in signals:
                self._requests.heed(agent, number)
            self._requests.listen(agent)
            self._beside.look(self._needed())
            self._servers.look(agent.spawner)
            self._view.poll()
            if (end := self._end(agent)) is not None:
                return end

    def _end(self, agent: Agent) -> End | None:
        """The end of the attempt, if it is clear by now."""
        requests, judgement = self._requests, agent.judgement()
        if requests.leave_until is not None:
            return Interrupted() if not agent.alive() or _is_past(requests.leave_until) else None
        match judgement:
            case Going():
                return self._stalled(agent)
            case Failed(exits):
                return Failed(failed) if (failed := self._settled(agent, exits)) else None
            case Finished() | Drained():
                return judgement
            case _:
                assert_never(judgement)

    def _stalled(self, agent: Agent) -> End | None:
        """The end of an attempt whose ranks live and get nowhere; while they save and leave, of grace."""
        if self._requests.drain_until is not None:
            return GraceExceeded() if _is_past(self._requests.drain_until) else None
        alarm = self._lookout.look(agent.run_dir, agent.alive())
        for rank in agent.wake(self._lookout.done):
            self._say(f"rank {rank} is done and had been stopped by a signal: it was told to go on")
        return None if alarm is None else Hung(alarm)

    def _settled(self, agent: Agent, exits: tuple[Exit, ...]) -> tuple[Exit, ...]:
        """All that failed; none while the one to blame may be yet to come."""
        raising = (witness.raising(agent.run_dir, agent.attempt, rank) for rank in agent.alive())
        failed = (*exits, *(exit_ for exit_ in raising if exit_ is not None))
        if causes.is_settled(failed) or not agent.alive() or _is_past(self._settle_until):
            return failed
        if self._settle_until is None:
            self._settle_until = time.monotonic() + SETTLE_S
        return ()

    def _patience_s(self) -> float:
        deadlines = (self._settle_until, self._requests.drain_until, self._requests.leave_until)
        until = [deadline - time.monotonic() for deadline in deadlines if deadline is not None]
        # Ranks that leave, or have failed, are not looked at: a look would stay due, and nobody rest.
        look_s = None if until else self._lookout.due_s()
        return max(0.0, min([TICK_S, *until] if look_s is None else [TICK_S, look_s]))

    def _needed(self) -> tuple[str, ...] | None:
        """Which companions are worth starting again; None for all."""
        if self._requests.leave_until is not None:
            return ()
        return None if self._requests.drain_until is None else (SAVER,)

    # ── when it ends ────────────────────────────────────────────────────────────────────────

    def _declare(self, agent: Agent, end: End) -> Blame | None:
        match end:
            case Failed(exits):
                return self._aftermath.declare(agent, exits)
            case Hung(alarm):
                return self._aftermath.declare_hung(agent, alarm)
            case Lost(reason):
                return self._aftermath.declare_lost(reason)
            case _:
                return None

    def _stop(self, agent: Agent) -> None:
        """Leave no process of the attempt. Raises `UnkillableError`."""
        try:
            agent.stop()
        except ForkServerLostError:
            self._servers.renew(agent)

    def _conclude(self, agent: Agent, end: End, fault: Blame | None) -> Ending | Again:
        draining = self._requests.drain_until is not None
        uses_library = witness.uses_library(agent.run_dir)
        ending: Ending | Again
        match end:
            case Finished() if draining and not _has_joined(agent):
                ending = Ending(Outcome.DRAINED, "the script left on SIGTERM")
            case Finished(warning):
                ending = Ending(Outcome.FINISHED, warning)
            case Drained(step):
                ending = Ending(Outcome.DRAINED, f"saved after step {step}")
            case Interrupted():
                ending = Ending(Outcome.INTERRUPTED)
            case GraceExceeded():
                place = agent.run_dir, agent.attempt, agent.ranks.world_size
                saved = witness.saved_step(*place)
                ending = ends.grace_exceeded(self._requests.grace_s, saved, uses_library)
            case Failed() | Hung() | Lost() if draining:
                ending = ends.failed_while_draining(str(fault), uses_library)
            case Failed() | Hung() | Lost():
                assert fault is not None
                ending = self._aftermath.decide(agent, fault)
            case _:
                assert_never(end)
        return ending


def counted(ranks: int) -> str:
    """`1 rank`, `2 ranks`."""
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def _has_joined(agent: Agent) -> bool:
    return witness.any_joined(agent.run_dir, agent.attempt, agent.ranks.world_size)


def _is_past(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline
