"""The launcher's end of the fork server: start ranks, hear of their deaths, kill them all.

Everything that the launcher learns about processes comes through this one connection.
"""

import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from launch import forkserver, processes
from launch.forkserver import Body
from launch.orders import (
    Answer,
    Ended,
    Order,
    Ready,
    Refused,
    Request,
    Signal,
    Started,
    Stop,
    Stopped,
    receive,
)
from launch.rank import Program

CLOSE_TIMEOUT_S = 10.0
"""Longest wait for a fork server to end: one whose children do not die of SIGKILL never does."""
LOST = "the fork server died, and every rank with it"
WAKE_EACH_S = 1.0
"""How often, while an answer is awaited, it is looked whether the fork server stands still."""


class ForkServerLostError(Exception):
    """The fork server is lost, and every rank with it; says how."""


class RefusedError(Exception):
    """The machine gives no process for a rank; others may have one."""


class Spawner:
    """Starts processes through a fork server of its own."""

    pid: int
    """Of the fork server."""
    cold: str
    """Why its processes start cold; empty if they are forked from a warm parent."""

    is_ready: bool
    """False while the fork server still imports: whatever is asked of it waits."""
    limit_s: float | None = None
    """How long it may leave a start without an answer; None for as long as it likes."""

    def __init__(
        self, connection: socket.socket, pid: int, cold: str = "", *, is_ready: bool = True
    ) -> None:
        self._connection = connection
        self.pid = pid
        self.cold = cold
        self.is_ready = is_ready
        self._waiting: list[Ended] = []
        self._lost = LOST
        self._decode = msgspec.json.Decoder(Answer).decode

    @classmethod
    def fork(cls, body: Body) -> "Spawner":
        """Fork this process, warm as it is; it must have one thread.

        Returns in this process alone: every started process leaves through here by `SystemExit`.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        launcher = os.getpid()
        # A collection in a child would copy every page that it marks, and the one at its exit would
        # take a second; here they have no more to do with what was imported.
        gc.collect()
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            ours.close()
            forkserver.serve(theirs, launcher, body)
            os._exit(0)
        theirs.close()
        return cls(ours, pid)

    @classmethod
    def execute(cls, program: Program, cold: str, preload: Sequence[str] = ()) -> "Spawner":
        """Start a bare interpreter, which becomes warm by itself unless there is a reason for `cold`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            theirs.set_inheritable(True)
            command = [
                *(sys.executable, "-P", "-m", forkserver.__name__),
                *(str(theirs.fileno()), str(os.getpid()), cold, ",".join(preload)),
                "keeps" if program.keeps_path else "",
                *(program.kind, program.target, *program.arguments),
            ]
            pid = os.posix_spawn(sys.executable, command, os.environ)
        return cls(ours, pid, cold, is_ready=False)

    def fileno(self) -> int:
        """Readable when `ended` has something to say."""
        return self._connection.fileno()

    def start(self, orders: Sequence[Order]) -> dict[str, int]:
        """Start a process for each order; gives their pids by name.

        Raises `RefusedError`, and `ForkServerLostError`.
        """
        for order in orders:
            self._send(order)
        pids: dict[str, int] = {}
        refused: list[Refused] = []
        while len(pids) + len(refused) < len(orders):
            self._await_answer()
            answer = self._receive()
            if isinstance(answer, Started):
                pids[answer.name] = answer.pid
            elif isinstance(answer, Refused):
                refused.append(answer)
            elif isinstance(answer, Ended):
                self._waiting.append(answer)
        if refused:
            raise RefusedError(
                f"{refused[0].name} cannot be started: {refused[0].reason}: the limit of processes"
                " (`ulimit -u`, or pids.max of the container) or memory may be used up"
            )
        return pids

    def _await_answer(self) -> None:
        waited_s = 0.0
        while not select.select([self._connection], [], [], WAKE_EACH_S)[0]:
            self.wake()
            waited_s += WAKE_EACH_S
            if self.limit_s is not None and waited_s > self.limit_s:
                self.give_up(
                    "the fork server was killed: it had started no rank for more than"
                    f" {self.limit_s:g} s (--startup-limit)"
                )

    def give_up(self, reason: str) -> None:
        """Kill a fork server that is waited for in vain: from now on it is lost, for this reason."""
        self._lost = reason
        os.kill(self.pid, signal.SIGKILL)
        self._connection.shutdown(socket.SHUT_RDWR)

    def ended(self) -> list[Ended]:
        """The processes that ended since the last call, without waiting for any."""
        self._connection.setblocking(False)
        try:
            while True:
                answer = self._receive()
                if isinstance(answer, Ended):
                    self._waiting.append(answer)
        except BlockingIOError:
            self._connection.setblocking(True)
        ended, self._waiting = self._waiting, []
        return ended

    def wake(self) -> bool:
        """Have a fork server that a signal stopped go on; True if it was stopped.

        While it stands still no rank is started or killed, and nobody hears of a death.
        """
        if processes.state(self.pid) != processes.STOPPED:
            return False
        os.kill(self.pid, signal.SIGCONT)
        return True

    def signal(self, number: int, names: Sequence[str], *, forced: bool = False) -> None:
        """Send a signal to those of `names` that live and catch it, or to all that live."""
        self._send(Signal(number, tuple(names), forced))

    def stop(self, timeout_s: float) -> list[Ended] | None:
        """Kill everything below the fork server; gives the deaths, or None if some do not die."""
        self._send(Stop())
        ended, self._waiting = self._waiting, []
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            self.wake()
            if not select.select([self._connection], [], [], min(left_s, WAKE_EACH_S))[0]:
                continue
            answer = self._receive()
            if isinstance(answer, Stopped):
                return ended
            if isinstance(answer, Ended):
                ended.append(answer)
        return None

    def close(self) -> int | None:
        """End the fork server and everything below it, and wait until it is gone, if it ever is.

        Gives its exit code, or the negative number of the signal that ended it, where that is known.
        """
        if self._connection.fileno() < 0:
            return None
        self._connection.close()
        self.wake()
        with suppress(ChildProcessError):
            pidfd = os.pidfd_open(self.pid)
            # One that still imports hears nothing, and has nobody to end.
            within_s = CLOSE_TIMEOUT_S if self.is_ready else 0.0
            if not select.select([pidfd], [], [], within_s)[0]:
                os.kill(self.pid, signal.SIGKILL)
                select.select([pidfd], [], [], processes.KILL_TIMEOUT_S)
            os.close(pidfd)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            return os.waitstatus_to_exitcode(status) if pid == self.pid else None
        return None

    def _send(self, request: Request) -> None:
        try:
            self._connection.send(msgspec.json.encode(request))
        except (BrokenPipeError, ConnectionResetError):
            raise ForkServerLostError(self._lost) from None

    def _receive(self) -> Answer:
        message = receive(self._connection)
        if not message:
            raise ForkServerLostError(self._lost)
        answer: Answer = self._decode(message)
        if isinstance(answer, Ready):
            self.is_ready, self.cold = True, answer.cold
        return answer
