"""The saver: a process beside the ranks of a node that turns copied states into durable checkpoints.

    python -m harness.checkpoint.saver RUN_DIR --address NAME [--with-parent] [--linger S]

It outlives the ranks, so that a save which they had handed over whole still ends, and a launcher that
was killed, so that the next one finds what is in memory. It imports no torch, and gives way to whoever
computes.
"""

import argparse
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext, suppress
from pathlib import Path

from harness import settings
from harness.arming import arm_from
from harness.checkpoint.desk import Desk
from harness.checkpoint.named import Folder
from harness.checkpoint.store import Store
from harness.checkpoint.succession import relieve, take_over
from harness.checkpoint.tell import record, said, warn
from harness.checkpoint.whereabouts import announce, whereabouts
from harness.checkpoint.wire import listener
from harness.events import Event
from harness.recorder import Recorder
from harness.rundir import RunDir
from harness.storage import checkpoint_store

LEAVES_WITHIN_S = 50.0
"""How long it takes, at most, to finish what is complete once it is asked to leave."""
_NICENESS = 10
_LONGEST_POLL_S = 86400.0
"""The kernel takes no more than 24 days."""
_WRITER = "saver-0"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until asked to leave, or until the parent has gone."""
    asked = _parser().parse_args(arguments)
    parents = [os.pidfd_open(os.getppid())] if asked.with_parent else []
    run_dir = RunDir.at(asked.run_dir)
    found = settings.read(run_dir.settings)
    if found is None:
        sys.stderr.write(f"{run_dir.path} is not the directory of a run: there is no run.toml\n")
        return 2
    os.nice(_NICENESS)
    arm_from(os.environ, "saver", run_dir)
    with _recorder(run_dir, found.run_id) as log:
        desk = Desk(found.run_id, lambda: _store(run_dir, found.run_id), _teller(log))
        leave = _asked_to_leave()
        earlier = take_over(desk.shelf, whereabouts(run_dir), asked.address, found.run_id)
        with closing(listener(asked.address)) as listening:
            _announce(run_dir, asked.address)
            relieve(earlier)
            _serve(desk, listening, [leave, *parents])
            dismissed, folder = _was_asked(leave), _folder(run_dir)
            succeeded = not dismissed and _linger(desk, listening, leave, asked.linger, folder)
        if folder is not None and dismissed:
            folder.remove()  # first: who is asked to leave may be killed, and mappings stay
        ended = desk.leave(LEAVES_WITHIN_S)
        if not succeeded:
            desk.rescue()
        if folder is not None and not (dismissed or succeeded):
            folder.remove_dead()  # another launcher may have begun meanwhile
    sys.stderr.flush()
    os._exit(0 if ended else 1)  # a thread may be stuck in the storage: it is not waited for


def _announce(run_dir: RunDir, address: str) -> None:
    """Write down where this saver is. Its launcher's own ranks know; a full disk ends nothing."""
    try:
        announce(run_dir, address)
    except OSError as error:
        warn(f"a later launcher will not find what is in memory: {said(error)}")


def _serve(
    desk: Desk, listening: socket.socket, ends: Sequence[int], within_s: float | None = None
) -> set[int]:
    """Admit whoever connects until one of `ends` becomes readable; which are, none after `within_s`."""
    watch = select.poll()
    for one in (listening.fileno(), *ends):
        watch.register(one, select.POLLIN)
    until_s = None if within_s is None else time.monotonic() + within_s
    while True:
        left_ms = None if until_s is None else max(0.0, until_s - time.monotonic()) * 1000
        ready = {descriptor for descriptor, _ in watch.poll(left_ms)}
        if not ready or ready & set(ends):
            return ready & set(ends)
        with suppress(OSError):  # whoever wanted in is gone
            desk.admit(listening.accept()[0])


def _linger(
    desk: Desk, listening: socket.socket, leave: int, linger_s: float, folder: Folder | None
) -> bool:
    """Hold what is in memory for a while, until somebody ends this, or the next launcher has it: True."""
    until_s = time.monotonic() + (0.0 if desk.shelf.is_empty else linger_s)
    ends = [leave, desk.relieved]
    with nullcontext() if folder is None else folder.held():
        while (left_s := until_s - time.monotonic()) > 0:
            ready = _serve(desk, listening, ends, min(left_s, _LONGEST_POLL_S))
            if desk.relieved in ready or _was_asked(leave):
                return desk.relieved in ready
    return False


def _folder(run_dir: RunDir) -> Folder | None:
    """Where copies in memory have names, if they have; the script may have said that.

    A copy of a run directory has none: there lies what is the original's.
    """
    found = settings.read(run_dir.settings)
    directory = "" if found is None else settings.values(found.settings).memory_dir
    folder = Folder.of(directory, found.run_id) if directory and found is not None else None
    return folder if folder is not None and folder.is_of(run_dir) else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness.checkpoint.saver")
    parser.add_argument("run_dir", type=Path, help="directory of the run")
    parser.add_argument("--address", required=True, help="name of the abstract socket to listen at")
    parser.add_argument(
        "--with-parent", action="store_true", help="leave when the process that started it dies"
    )
    parser.add_argument(
        "--linger",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds for which it then still holds what is in memory (default: 0)",
    )
    return parser


def _recorder(run_dir: RunDir, run_id: str) -> Recorder:
    return Recorder(run_dir, run_id, _WRITER)


def _teller(log: Recorder) -> Callable[[Event, int], None]:
    """What writes events, each under its own attempt."""
    turn = threading.Lock()

    def tell(event: Event, attempt: int) -> None:
        with turn:
            log.attempt = attempt
            record(log, event)

    return tell


def _store(run_dir: RunDir, run_id: str) -> Store:
    """The run's storage; where that is, the script may have said after this process started."""
    found = settings.read(run_dir.settings)
    assert found is not None, "it was there"
    return checkpoint_store(run_dir, run_id, settings.values(found.settings))


def _asked_to_leave() -> int:
    """A descriptor that becomes readable on SIGTERM and SIGINT, and on SIGHUP: the parent has died."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reader


def _was_asked(leave: int) -> bool:
    """True if somebody wants this process to end, and it is not just that its parent died."""
    with suppress(BlockingIOError):
        return bool(set(os.read(leave, 64)) & {signal.SIGTERM, signal.SIGINT})
    return False


if __name__ == "__main__":
    sys.exit(main())
