"""The parent of all ranks: it forks them, reaps them, adopts their orphans and kills them all.

Forked from the launcher while that is warm and has one thread; started as a bare interpreter where
that cannot be, and then ranks start cold. It ends, and everything below it, when its launcher does.
"""

import gc
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NoReturn

import msgspec

from harness.arming import arm_from
from harness.parent import die_with
from harness.points import Point, reach
from harness.rundir import RunDir
from launch import processes, rank
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
from launch.rank import Kind, Program

STOP_CHECK_S = 0.05
"""Longest wait for a death while stopping, before all children are looked for and killed again."""
TIDY_UP_S = 2.0
"""How long whoever removes a killed rank's shared memory may take for it."""
ASKS_TO_LEAVE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
RESTORED_SIGNALS = (*ASKS_TO_LEAVE, signal.SIGCHLD)


Body = Callable[[Order], NoReturn]
"""What a started process does once its streams, environment and signals are in place."""


class _Server:
    def __init__(self, connection: socket.socket, body: Body) -> None:
        self._connection = connection
        self._body = body
        self._pid = os.getpid()
        self._names: dict[int, str] = {}
        self._pidfds: dict[int, int] = {}
        self._armed = False
        self._decode = msgspec.json.Decoder(Request).decode
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)

    def serve(self) -> None:
        """Obey until the launcher is gone, and then leave nothing behind."""
        while True:
            # A rank's pidfd wakes us; orphans that ended are reaped along with it.
            ready = [key.fileobj for key, _ in self._selector.select()]
            self._reap()
            if self._connection in ready:
                message = receive(self._connection)
                if not message:
                    break
                self._obey(self._decode(message))
        self._kill_all()

    def _obey(self, request: Request) -> None:
        match request:
            case Order():
                self._start(request)
            case Signal(number, names, forced):
                for pid, name in self._names.items():
                    if name in names and (forced or processes.has_handler(pid, number)):
                        os.kill(pid, number)
            case Stop():
                self._kill_all()
                self._answer(Stopped())

    def _start(self, order: Order) -> None:
        if not self._armed:  # forked before there was a run, it learns now of which it is
            arm_from(
                os.environ, "fork-server", RunDir.at(order.environment.get("HARNESS_RUN_DIR", ""))
            )
            self._armed = True
        try:
            reach(Point.FORK)
            pid = os.fork()
        except OSError as error:
            self._answer(Refused(order.name, str(error)))
            return
        if pid == 0:
            self._become(order)
        pidfd = os.pidfd_open(pid)
        self._names[pid], self._pidfds[pid] = order.name, pidfd
        self._selector.register(pidfd, selectors.EVENT_READ)
        self._answer(Started(order.name, pid))

    def _become(self, order: Order) -> NoReturn:
        """Turn this fresh fork into the process that was ordered."""
        try:
            self._selector.close()
            self._connection.close()
            for pidfd in self._pidfds.values():
                os.close(pidfd)
            _enter(order, self._pid)
            if rank_number := order.environment.get("RANK"):
                arm_from(os.environ, f"rank-{rank_number}")
            reach(Point.FORKED)
        except BaseException:  # noqa: BLE001 - nothing of this may be taken for the launcher's own
            traceback.print_exc()
            os._exit(1)
        self._body(order)

    def _reap(self) -> None:
        """Report every process that ended; orphans end without a word."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if name := self._names.pop(pid, None):
                pidfd = self._pidfds.pop(pid)
                self._selector.unregister(pidfd)
                os.close(pidfd)
                exitcode = os.waitstatus_to_exitcode(status)
                self._answer(Ended(name, pid, exitcode, time.monotonic_ns()))

    def _kill_all(self) -> None:
        """Kill our children, then the orphans that their deaths make ours, until none is left.

        Only direct children are ever killed: their pids cannot be anybody else's before we reap.
        Those that tidy up after the others may do so first, for a while.
        """
        patience_until_s = time.monotonic() + TIDY_UP_S
        while _has_children():
            patient = time.monotonic() < patience_until_s
            for pid in processes.children(self._pid):
                if not (patient and processes.tidies_up(pid)):
                    os.kill(pid, signal.SIGKILL)
            signal.sigtimedwait({signal.SIGCHLD}, STOP_CHECK_S)
            self._reap()

    def _answer(self, answer: Answer) -> None:
        # A launcher that is gone shows at the next look at the connection.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(msgspec.json.encode(answer))


def serve(connection: socket.socket, launcher: int, body: Body) -> None:
    """Be the fork server until `launcher` ends. In a started process: ends in `SystemExit`."""
    processes.name_this_process("fork-server")
    # Not SIGKILL: somebody has to kill the children of ranks, which outlive their parents. The end
    # of the connection wakes us to do so, and SIGCONT lets us see it even if we were stopped.
    die_with(launcher, signal.SIGCONT)
    processes.adopt_orphans()
    os.setsid()
    for number in ASKS_TO_LEAVE:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    _Server(connection, body).serve()


def _enter(order: Order, parent: int) -> None:
    """Session, signals, streams, folder and environment of a started process."""
    die_with(parent)
    os.setsid()
    processes.name_this_process(order.name)
    for number in RESTORED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for descriptor, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, order.output, os.O_WRONLY | os.O_APPEND | os.O_CREAT),
        (2, order.errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT),
    ):
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, descriptor)
        if opened != descriptor:
            os.close(opened)
    rank.open_streams()
    os.environ.update(order.environment)
    os.chdir(order.directory)


def start_warm(program: Program) -> Body:
    """A body that runs the program in the fork itself, with everything imported."""
    ours = rank.own_modules()

    def body(order: Order) -> NoReturn:
        rank.play_forked(program, order.stacks, ours)

    return body


def start_cold(program: Program) -> Body:
    """A body that becomes a fresh interpreter, which has everything still to import."""

    def body(order: Order) -> NoReturn:
        python = [sys.executable, *(["-P"] if program.keeps_path else [])]
        command = [*python, rank.__file__, order.stacks, program.kind, program.target]
        os.execv(sys.executable, [*command, *program.arguments])  # noqa: S606

    return body


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def main(arguments: Iterable[str]) -> None:
    """Be a fork server of one's own: `DESCRIPTOR LAUNCHER COLD PRELOAD KEEPS KIND TARGET ARGUMENTS…`.

    COLD says why processes are to start cold; where it is empty this one becomes warm first. KEEPS is
    empty unless ranks are to leave Python's path as it is.
    """
    descriptor, launcher, cold, preload, keeps, kind, target, *rest = arguments
    die_with(int(launcher))  # until it serves, it has nothing to tidy up
    for number in ASKS_TO_LEAVE:
        signal.signal(number, signal.SIG_IGN)
    program = Program(Kind(kind), target, tuple(rest), bool(keeps))
    cold = cold or _warm_up(preload, program)
    if not program.keeps_path:
        sys.path.insert(
            0, program.folder
        )  # this interpreter was started with -P, and put none there
    connection = socket.socket(fileno=int(descriptor))
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.send(msgspec.json.encode(Ready(cold)))
    serve(connection, int(launcher), start_cold(program) if cold else start_warm(program))


def _warm_up(preload: str, program: Program) -> str:
    """Import what ranks need; gives why they cannot be forked all the same, if they cannot."""
    from launch import warm

    warm.load()
    try:
        harmful = warm.preload(preload.split(",") if preload else (), program.folder)
    except ImportError as error:
        return f"--preload {error}"
    gc.collect()
    gc.freeze()
    return (
        "; ".join(f"--preload {name}: {harm}" for name, harm in harmful.items()) or warm.obstacle()
    )


if __name__ == "__main__":
    main(sys.argv[1:])
