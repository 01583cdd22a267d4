"""What follows a failure: who is blamed, what is kept of it, and whether the job starts again."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from harness import events
from harness.events import Cause, Outcome
from harness.recorder import Recorder
from launch import causes, flightrecorder, processes, restarts, stacks, witness
from launch.agent import Agent, name_of
from launch.causes import Blame
from launch.ends import Again, Ending
from launch.exits import Exit
from launch.restarts import Decision, Failure, Limits
from launch.spawner import ForkServerLostError
from launch.stacks import Doing
from launch.watchdog import Alarm

_LITTLE_BYTES = 64 << 10
"""With less room than this a disk is full: what a rank says may need more."""


class Aftermath:
    """Remembers every failure of this life of the launcher."""

    def __init__(self, recorder: Recorder, limits: Limits, say: Callable[[str], None]) -> None:
        self._recorder = recorder
        self._limits = limits
        self._say = say
        self._history: list[Failure] = []
        self._started_ns = 0
        self._kills_before = 0

    def attempt_begins(self) -> None:
        """Remember how things are before an attempt."""
        self._started_ns = self._recorder.now_ns()
        self._kills_before = processes.out_of_memory_kills()

    def declare(self, agent: Agent, failed: Sequence[Exit]) -> Blame:
        """Say in the log that the attempt is lost, since when and why, and ask the living for stacks."""
        short = processes.out_of_memory_kills() > self._kills_before
        fault = _with_room_in_mind(agent, causes.blame(failed, out_of_memory=short))
        self._recorder.write(
            events.FailureDetected(fault.rank, fault.cause, fault.reason),
            min(exit_.at_ns for exit_ in failed if exit_.rank in agent.exits),
        )
        if _dump(agent, stacks.PATIENCE_S):
            self._tell_stacks(agent)
        return fault

    def declare_hung(self, agent: Agent, alarm: Alarm) -> Blame:
        """Say in the log that the attempt hangs and at whom, and keep all that shows why.

        The stacks come first: where ranks are equals, they tell who waits for whom. Noticed it was before.
        """
        noticed_ns = self._recorder.now_ns()
        pids = agent.pids()
        has_dumped = _dump(agent, stacks.HANG_PATIENCE_S)
        fault = causes.hang(alarm, {rank: _doing(agent, rank, pid) for rank, pid in pids.items()})
        self._recorder.write(
            events.FailureDetected(fault.rank, fault.cause, fault.reason), noticed_ns
        )
        silent = {
            pid: path
            for rank, pid in pids.items()
            if not _text(path := agent.run_dir.stacks(agent.attempt, rank))
        }
        flightrecorder.ask(agent.run_dir.incident(agent.attempt), list(pids))
        stacks.spy(silent)
        if has_dumped or any(map(_text, silent.values())):
            self._tell_stacks(agent)
        return fault

    def _tell_stacks(self, agent: Agent) -> None:
        self._recorder.write(events.StacksDumped(str(agent.run_dir.incident(agent.attempt))))

    def declare_lost(self, reason: str) -> Blame:
        """Say in the log that the attempt ended with its fork server, or as that could not fork."""
        fault = Blame(None, Cause.HELPER, reason, "")
        self._recorder.write(events.FailureDetected(None, fault.cause, fault.reason))
        return fault

    def decide(self, agent: Agent, fault: Blame) -> Ending | Again:
        """Whether the job starts again, and how soon."""
        now_ns = self._recorder.now_ns()
        self._history.append(self._failure(agent, fault, now_ns))
        decision = restarts.decide(self._history, now_ns, self._limits)
        self._keep_exits(agent, fault, decision)
        self._say(f"attempt {agent.attempt}: {fault}; {decision.reason}")
        if decision.restart:
            return Again(decision.wait_s)
        _hand_up(agent, fault)
        place = "" if fault.rank is None else f"; {_why(agent, fault.rank)}"
        return Ending(Outcome.FAILED, f"{fault}; {decision.reason}{place}")

    def _failure(self, agent: Agent, fault: Blame, now_ns: int) -> Failure:
        place = (agent.run_dir, agent.attempt, agent.ranks.world_size)
        return Failure(
            attempt=agent.attempt,
            at_ns=now_ns,
            cause=fault.cause,
            signature=fault.signature,
            lasted_ns=now_ns - self._started_ns,
            began=witness.has_stepped(*place) if witness.uses_library(agent.run_dir) else None,
            step=witness.best_step(*place),
        )

    def _keep_exits(self, agent: Agent, fault: Blame, decision: Decision) -> None:
        content = {
            "schema": 1,
            "attempt": agent.attempt,
            "blamed": asdict(fault),
            "decision": asdict(decision),
            "exits": [asdict(exit_) for _, exit_ in sorted(agent.exits.items())],
            "killed_by_launcher": agent.alive(),
        }
        path = agent.run_dir.exits(agent.attempt)
        with suppress(OSError):  # the log has what matters most of it, where the disk is not full
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content, indent=2) + "\n")


def _dump(agent: Agent, patience_s: float) -> bool:
    """Have all that live write their stacks; False if none did."""
    pids = {name_of(rank): pid for rank, pid in agent.pids().items()}
    files = {name_of(rank): agent.run_dir.stacks(agent.attempt, rank) for rank in agent.alive()}
    with suppress(ForkServerLostError):
        return bool(files) and stacks.dump(agent.spawner, files, pids, patience_s)
    return False


def _doing(agent: Agent, rank: int, pid: int) -> Doing:
    if processes.state(pid) in ("T", "t"):
        return Doing.STOPPED
    return stacks.doing(_text(agent.run_dir.stacks(agent.attempt, rank)))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _errors(agent: Agent, rank: int) -> Path:
    return agent.run_dir.log(agent.attempt, rank, "err")


def _with_room_in_mind(agent: Agent, fault: Blame) -> Blame:
    """Where a run's disk is full, a failure shows no mistake in the program: room may be made for it."""
    folder = agent.run_dir.path
    if fault.cause not in (Cause.EXIT, Cause.EXCEPTION) or not _is_full(folder):
        return fault
    return replace(fault, reason=f"{fault.reason}; no room is left in {folder}", signature="")


def _why(agent: Agent, rank: int) -> str:
    """Where a rank said why it failed, or that it had no room for it."""
    errors, folder = _errors(agent, rank), agent.run_dir.path
    if not _text(errors) and _is_full(folder):
        return f"it could not say why, since no room is left in {folder}"
    return f"it said why in {errors}"


def _is_full(folder: Path) -> bool:
    with suppress(OSError):
        room = os.statvfs(folder)
        return room.f_bavail * room.f_frsize < _LITTLE_BYTES
    return False


def _hand_up(agent: Agent, fault: Blame) -> None:
    """Give the culprit's error file to whoever launched us with a place for one, as torchrun does."""
    place = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if place is not None and fault.rank is not None:
        with suppress(OSError):
            shutil.copyfile(agent.run_dir.error(agent.attempt, fault.rank), place)
