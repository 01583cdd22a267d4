"""The injector: a process of its own that breaks its run fault by fault, and outlives what it kills.

A fault is logged before it acts and confirmed afterwards. All that is remembered is in the log, so
an injector that was killed itself is simply started again: nothing is repeated, nothing forgotten.
"""

import os
import select
import signal
from collections.abc import Callable
from types import FrameType
from typing import Self

from faultinject import kinds, targets
from faultinject.situation import Defer, Leave, Move, Settle, Situation, Skip, Strike, Wait, decide
from faultinject.tape import Tape
from faultinject.targets import Refusal, Victim, Why
from harness.events import Event, FaultConfirmed, FaultDeferred, FaultInjected, FaultSkipped
from harness.journal import HORIZON_NS, Tail
from harness.recorder import Recorder, boot_id
from harness.rundir import RunDir

WRITER = "injector"
LOG_PERIOD_S = 0.1
"""Between looks at the log while the next move hangs on it."""
IDLE_PERIOD_S = 0.5
"""Between looks at the log while nothing is due: only the end of the run would matter."""
DEAD = (Why.UNREGISTERED, Why.OTHER_ATTEMPT, Why.OTHER_BOOT, Why.GONE, Why.REUSED)
"""Refusals that say that the process which once registered lives no more."""


class Bell:
    """SIGTERM and SIGINT as something to wait for, beside a descriptor and the time."""

    def __init__(self, signals: tuple[signal.Signals, ...]) -> None:
        self.rung: signal.Signals | None = None
        """The signal that asked this process to leave."""
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._write = write
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in signals:
            signal.signal(number, self._ring)

    def wait(self, timeout_s: float, descriptor: int | None = None) -> bool:
        """Until asked to leave (True), the descriptor is readable, or the time is over."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
        if self.rung is None:
            poll.poll(max(0.0, timeout_s) * 1000)
        return self.rung is not None

    def _ring(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the form of a handler
        self.rung = signal.Signals(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self._read)
        os.close(self._write)


class Injector:
    """One life of the injector, over one tape."""

    def __init__(
        self, run_dir: RunDir, tape: Tape, recorder: Recorder, say: Callable[[str], None]
    ) -> None:
        self._run_dir, self._tape, self._recorder, self._say = run_dir, tape, recorder, say
        self._kinds = {fault.kind: kinds.kind(fault.kind) for fault in tape.faults}
        lethal = (name for name, kind in self._kinds.items() if kind.ends_attempt)
        self.situation = Situation(frozenset(lethal))
        self._tail = Tail(run_dir)
        self._victim: Victim | None = None
        self._waiting_for = ""

    def run(self, bell: Bell) -> str:
        """Inject until nothing is left to do or the bell rings; says why it left."""
        while True:
            # Asked before the log is read: what it says of the run's end is then accounted for.
            asked = bell.rung
            self._read_log()
            move = decide(self._tail.now_ns(), self._tape, self.situation)
            if isinstance(move, Leave):
                return move.reason
            if asked is not None and not isinstance(move, Skip | Settle):
                return f"asked to leave by {asked.name}"
            wait_s = self._do(move)
            if wait_s > 0 and asked is not None:
                return f"asked to leave by {asked.name}"
            if wait_s > 0:
                bell.wait(wait_s, None if self._victim is None else self._victim.descriptor)

    def account(self) -> str:
        """What became of every fault of the tape."""
        situation = self.situation
        planned = [fault.id for fault in self._tape.faults]
        applied = sum(fault in situation.injected for fault in planned)
        skipped = sum(fault in situation.skipped for fault in planned)
        left = len(planned) - applied - skipped
        return (
            f"{len(planned)} planned = {applied} applied + {skipped} skipped + {left} still to come;"
            f" {len(situation.deferred)} had to wait for their target"
        )

    def _do(self, move: Move) -> float:
        """Carry out `move`; the seconds until it makes sense to decide again."""
        match move:
            case Wait(until_ns=until_ns, reason=reason):
                return self._wait(until_ns, reason)
            case Defer(fault=fault, reason=reason):
                if fault.id not in self.situation.deferred:
                    self._write(FaultDeferred(fault.id, reason), self.situation.attempt)
                    self._say(f"{fault.id} waits for {fault.target}: {reason}")
                return LOG_PERIOD_S
            case Strike():
                return self._strike(move)
            case Settle():
                return self._settle(move)
            case Skip(fault=fault, reason=reason):
                self._write(FaultSkipped(fault.id, reason), self.situation.attempt)
                self._say(f"{fault.id} is skipped: {reason}")
        return 0.0

    def _wait(self, until_ns: int | None, reason: str) -> float:
        if reason != self._waiting_for:
            self._say(reason)
            self._waiting_for = reason
        if until_ns is None:
            return LOG_PERIOD_S
        return min(IDLE_PERIOD_S, max(0.001, (until_ns - self._tail.now_ns()) / 1e9))

    def _strike(self, move: Strike) -> float:
        fault = move.fault
        found = targets.find(self._run_dir, fault.target.number, move.attempt, boot_id())
        if isinstance(found, Refusal):
            return self._do(Defer(fault, found.reason))
        self._write(FaultInjected(fault.id, fault.kind, str(fault.target)), move.attempt)
        self._kinds[fault.kind].act(found)
        self._victim = found
        self._say(f"{fault.id} {fault.kind} of {fault.target}, process {found.pid}")
        return 0.0

    def _settle(self, move: Settle) -> float:
        """See that an injected fault took effect; repeat it if an injector died before it acted."""
        fault, kind = move.fault, self._kinds[move.fault.kind]
        if self._victim is None:
            found = targets.find(self._run_dir, fault.target.number, move.attempt, boot_id())
            if isinstance(found, Refusal):
                if found.why not in DEAD and self.situation.outcome is None:
                    return LOG_PERIOD_S
                return self._confirmed(move, f"seen by a later injector: {found.reason}")
            self._victim = found
            kind.act(found)
        seen = kind.confirm(self._victim)
        return IDLE_PERIOD_S if seen is None else self._confirmed(move, seen)

    def _confirmed(self, move: Settle, detail: str) -> float:
        if self._victim is not None:
            self._victim.close()
            self._victim = None
        self._write(FaultConfirmed(move.fault.id, detail), move.attempt)
        self._say(f"{move.fault.id} confirmed: {detail}")
        return 0.0

    def _write(self, event: Event, attempt: int) -> None:
        self._recorder.attempt = max(0, attempt)
        self.situation.feed(self._recorder.write(event))

    def _read_log(self) -> None:
        """Take in all that is there. Not a second behind, as readers that need exact order are."""
        for batch in self._tail.batches(self._tail.now_ns() + HORIZON_NS):
            for entry in batch:
                self.situation.feed(entry)
