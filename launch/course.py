"""One life of the launcher: attempts, one after the other, until the job ends one way or another.

What is decided lies in `exits`, `causes` and `restarts`; here it is done, in the right order, and
written into the log.
"""

import json
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Protocol, assert_never

from harness import events
from harness.events import Cause, Outcome
from harness.recorder import Recorder
from launch import causes, processes, restarts, stacks, witness
from launch.agent import Agent, UnkillableError, name_of
from launch.causes import Blame
from launch.companions import Companion
from launch.exits import Drained, Failed, Finished, Going
from launch.rank import Program
from launch.restarts import NS, Failure, Limits
from launch.spawner import ForkServerLostError, Spawner
from launch.watch import Watch

TICK_S = 0.5
"""How often the live view moves, and a rank that left without joining is looked at again."""
SETTLE_S = 0.2
"""How long a failure that looks like the loss of a peer waits for that peer's own."""
INTERRUPT_S = 3.0
"""How long ranks have to leave after SIGINT."""
BEGAN_AFTER_S = 60.0
"""A script without the library has begun if it ran for that long."""
FORK_SERVER = "fork server"


class View(Protocol):
    """Shows how the run goes."""

    def poll(self) -> None:
        """Show the present."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How this life of the launcher ended."""

    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Somebody pressed Ctrl-C."""


@dataclass(frozen=True, slots=True)
class GraceExceeded:
    """Ranks were asked to save and leave, and did not in time."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The fork server died, and all ranks with it."""


End = Finished | Drained | Failed | Interrupted | GraceExceeded | Lost


class Course:
    """Leads an agent from the first attempt to the end."""

    ending: Ending
    """Set when `lead` returns."""

    def __init__(
        self,
        *,
        program: Program,
        limits: Limits,
        grace_s: float,
        recorder: Recorder,
        watch: Watch,
        claim_attempt: Callable[[], int],
        companions: Mapping[str, Companion],
        view: View,
        say: Callable[[str], None],
    ) -> None:
        self._program = program
        self._limits = limits
        self._grace_s = grace_s
        self._recorder = recorder
        self._watch = watch
        self._claim_attempt = claim_attempt
        self._companions = dict(companions)
        self._view = view
        self._say = say
        self._history: list[Failure] = []
        self._started_ns = 0
        self._settle_until: float | None = None
        self._grace_until: float | None = None
        self._leave_until: float | None = None

    def lead(self, agent: Agent) -> bool:
        """Start attempts until the job ends; True if it is done."""
        self._watch.add(agent.spawner, FORK_SERVER)
        ending: Ending | None = None
        while ending is None:
            ending = self._attempt(agent)
        self.ending = ending
        return ending.outcome is Outcome.FINISHED

    # ── one attempt ─────────────────────────────────────────────────────────────────────────

    def _attempt(self, agent: Agent) -> Ending | None:
        """One attempt from its number to its last process; None if another is to follow."""
        try:
            self._begin(agent)
            end = self._follow(agent)
        except ForkServerLostError:
            end = Lost()
        fault = self._declare(agent, end)
        try:
            self._stop(agent)
        except UnkillableError as error:
            return Ending(Outcome.FAILED, str(error))
        self._recorder.write(events.RanksStopped())
        if fault is None:
            stacks.forget_empty(agent.run_dir.incident(agent.attempt))
        return self._conclude(agent, end, fault)

    def _begin(self, agent: Agent) -> None:
        attempt = self._claim_attempt()
        world_size = agent.ranks.world_size
        self._recorder.attempt = attempt
        self._recorder.write(events.AttemptStarted(world_size))
        self._started_ns = self._recorder.now_ns()
        self._settle_until = None
        agent.start(attempt)
        cold = agent.spawner.cold
        self._recorder.write(events.RanksSpawned(world_size, warm=not cold, reason=cold))
        self._say(
            f"attempt {attempt}: {world_size} ranks started{f' cold: {cold}' if cold else ''}"
        )

    def _follow(self, agent: Agent) -> End:
        """Watch the attempt until its end is clear. Raises `ForkServerLostError`."""
        while True:
            ready, signals = self._watch.wait(self._patience_s())
            agent.take_exits()
            for number in signals:
                self._heed(agent, number)
            for name in ready & self._companions.keys():
                self._part_with(str(name))
            self._view.poll()
            if (end := self._end(agent)) is not None:
                return end

    def _end(self, agent: Agent) -> End | None:
        """The end of the attempt, if it is clear by now."""
        judgement = agent.judgement()
        if self._leave_until is not None:
            gone = not agent.alive()
            return Interrupted() if gone or _is_past(self._leave_until) else None
        match judgement:
            case Going():
                late = self._grace_until is not None and _is_past(self._grace_until)
                return GraceExceeded() if late else None
            case Failed(failed) if not causes.is_settled(failed):
                if self._settle_until is None:
                    self._settle_until = time.monotonic() + SETTLE_S
                return judgement if _is_past(self._settle_until) or not agent.alive() else None
            case Finished() | Drained() | Failed():
                return judgement
            case _:
                assert_never(judgement)

    def _patience_s(self) -> float:
        deadlines = (self._settle_until, self._grace_until, self._leave_until)
        until = [deadline - time.monotonic() for deadline in deadlines if deadline is not None]
        return max(0.0, min([TICK_S, *until]))

    # ── signals and companions ──────────────────────────────────────────────────────────────

    def _heed(self, agent: Agent, number: int) -> None:
        if number == signal.SIGINT:
            self._interrupt(agent)
        elif self._grace_until is None:
            self._drain(agent, signal.Signals(number).name)

    def _interrupt(self, agent: Agent) -> None:
        if self._leave_until is not None:
            self._leave_until = time.monotonic()
            return
        self._say(f"interrupted: ranks have {INTERRUPT_S:g} s to leave; once more kills them now")
        self._leave_until = time.monotonic() + INTERRUPT_S
        agent.signal(signal.SIGINT)

    def _drain(self, agent: Agent, name: str) -> None:
        self._recorder.write(events.DrainRequested(self._grace_s))
        self._grace_until = time.monotonic() + self._grace_s
        self._say(f"{name}: ranks have {self._grace_s:g} s to save and leave")
        if witness.any_joined(agent.run_dir, agent.attempt, agent.ranks.world_size):
            agent.request_drain()
        else:  # a script without the library knows the signal at best
            agent.signal(signal.SIGTERM)

    def _part_with(self, name: str) -> None:
        companion = self._companions.pop(name)
        self._watch.remove(companion)
        status = companion.process.wait()
        if status != 0:
            self._say(f"the {name} ended with status {status}: training goes on without it")

    # ── the end of an attempt ───────────────────────────────────────────────────────────────

    def _declare(self, agent: Agent, end: End) -> Blame | None:
        """Write a failure into the log, and who is to blame into the incident's folder."""
        if isinstance(end, Lost):
            fault = Blame(None, Cause.HELPER, "the fork server died, and every rank with it", "")
            self._recorder.write(events.FailureDetected(None, fault.cause, fault.reason))
            return fault
        if not isinstance(end, Failed):
            return None
        fault = causes.blame(end.exits, out_of_memory=False)
        noticed_ns = min(exit_.at_ns for exit_ in end.exits)
        self._recorder.write(
            events.FailureDetected(fault.rank, fault.cause, fault.reason), noticed_ns
        )
        files = {name_of(rank): agent.run_dir.stacks(agent.attempt, rank) for rank in agent.alive()}
        with suppress(ForkServerLostError):
            if files and stacks.dump(agent.spawner, files):
                folder = agent.run_dir.incident(agent.attempt)
                self._recorder.write(events.StacksDumped(str(folder)))
        return fault

    def _stop(self, agent: Agent) -> None:
        try:
            agent.stop()
        except ForkServerLostError:
            self._replace_fork_server(agent)

    def _replace_fork_server(self, agent: Agent) -> None:
        """Kill what the dead one left behind, all of it ours now, and start a cold one."""
        self._watch.remove(agent.spawner)
        agent.spawner.close()
        spared = {companion.process.pid for companion in self._companions.values()}
        processes.kill_children(spared)
        agent.spawner = Spawner.execute(self._program, "the warm fork server died")
        self._watch.add(agent.spawner, FORK_SERVER)

    def _conclude(self, agent: Agent, end: End, fault: Blame | None) -> Ending | None:
        match end:
            case Finished(warning):
                if self._grace_until is not None and not self._joined(agent):
                    return Ending(Outcome.DRAINED, "the script left on SIGTERM")
                return Ending(Outcome.FINISHED, warning)
            case Drained(step):
                return Ending(Outcome.DRAINED, f"saved after step {step}")
            case Interrupted():
                return Ending(Outcome.INTERRUPTED, "interrupted")
            case GraceExceeded():
                return Ending(
                    Outcome.DRAINED,
                    f"grace exceeded: not every rank had saved within {self._grace_s:g} s;"
                    " the last committed checkpoint stands",
                )
            case Failed() | Lost():
                assert fault is not None
                return self._after_failure(agent, fault)
            case _:
                assert_never(end)

    def _after_failure(self, agent: Agent, fault: Blame) -> Ending | None:
        self._write_exits(agent, fault)
        if self._grace_until is not None:
            return Ending(Outcome.DRAINED, f"{fault} while draining")
        now_ns = self._recorder.now_ns()
        self._history.append(self._failure(agent, fault, now_ns))
        decision = restarts.decide(self._history, now_ns, self._limits)
        self._say(f"attempt {agent.attempt}: {fault}; {decision.reason}")
        return None if decision.restart else Ending(Outcome.FAILED, f"{fault}; {decision.reason}")

    def _failure(self, agent: Agent, fault: Blame, now_ns: int) -> Failure:
        place = (agent.run_dir, agent.attempt, agent.ranks.world_size)
        lasted = now_ns - self._started_ns > BEGAN_AFTER_S * NS
        return Failure(
            attempt=agent.attempt,
            at_ns=now_ns,
            cause=fault.cause,
            signature=fault.signature,
            began=witness.has_stepped(*place) if self._joined(agent) else lasted,
            step=witness.best_step(*place),
        )

    def _joined(self, agent: Agent) -> bool:
        return witness.any_joined(agent.run_dir, agent.attempt, agent.ranks.world_size)

    def _write_exits(self, agent: Agent, fault: Blame) -> None:
        content = {
            "schema": 1,
            "attempt": agent.attempt,
            "blamed": asdict(fault),
            "exits": [asdict(exit_) for _, exit_ in sorted(agent.exits.items())],
            "killed_by_launcher": agent.alive(),
        }
        agent.run_dir.exits(agent.attempt).write_text(json.dumps(content, indent=2) + "\n")


def _is_past(deadline: float) -> bool:
    return time.monotonic() >= deadline
