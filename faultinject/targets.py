"""Which process a rank is, proven: the injector can hit what the run registered and nothing else.

A pid alone names nobody: it is used again, here or after a reboot. So the process is pinned by a
pidfd first, everything is checked after that, and every signal goes through the pidfd.
"""

import errno
import json
import os
import select
import signal
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from harness.beginning import start_ticks
from harness.rundir import RunDir

SCHEMA = 1
"""Newest form of a worker file that is read."""


class Why(StrEnum):
    """Why a process is not hit."""

    UNREGISTERED = "unregistered"
    UNREADABLE = "unreadable"
    OTHER_ATTEMPT = "other attempt"
    OTHER_BOOT = "other boot"
    OTHER_RUN = "other run"
    GONE = "gone"
    REUSED = "pid used again"
    UNLOCKED = "event file not held"
    FORBIDDEN = "not ours"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nobody is hit, and why."""

    why: Why
    reason: str


@dataclass(frozen=True, slots=True)
class Registration:
    """What a rank said of itself when it joined."""

    rank: int
    pid: int
    start_ticks: int
    boot_id: str
    attempt: int
    event_file: Path
    """Absolute; the rank holds an exclusive lock on it for as long as it lives."""


class Victim:
    """A registered process, held by a pidfd: signals reach it or nobody."""

    def __init__(self, registration: Registration, descriptor: int) -> None:
        self.registration = registration
        self.descriptor = descriptor
        """The pidfd, ours to close; readable once the process is dead."""

    @property
    def pid(self) -> int:
        """Its process id, for people to read."""
        return self.registration.pid

    def send(self, number: signal.Signals) -> None:
        """Send it a signal; a process that died meanwhile is no error."""
        try:
            signal.pidfd_send_signal(self.descriptor, number)
        except ProcessLookupError:
            return

    def is_dead(self) -> bool:
        """The process has ended, whether or not its parent has noticed."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Let go of the process."""
        os.close(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def find(run_dir: RunDir, rank: int, attempt: int, boot_id: str) -> Victim | Refusal:
    """The process that is rank `rank` in `attempt`, or why there is none to be hit."""
    registration = registered(run_dir, rank)
    if isinstance(registration, Refusal):
        return registration
    refusal = stale(registration, run_dir, rank, attempt, boot_id)
    if refusal is not None:
        return refusal
    try:
        victim = Victim(registration, os.pidfd_open(registration.pid))
    except (OSError, OverflowError) as error:
        return Refusal(Why.GONE, f"process {registration.pid} is gone ({error})")
    refusal = impostor(victim)
    if refusal is not None:
        victim.close()
        return refusal
    return victim


def registered(run_dir: RunDir, rank: int) -> Registration | Refusal:
    """What rank `rank` wrote of itself."""
    path = run_dir.worker(rank)
    try:
        values = json.loads(path.read_bytes())
        return _registration(values, run_dir)
    except FileNotFoundError:
        return Refusal(Why.UNREGISTERED, f"rank {rank} has not registered itself")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return Refusal(Why.UNREADABLE, f"{path} cannot be read: {error}")


def _registration(values: Any, run_dir: RunDir) -> Registration:
    if _whole(values["schema"]) > SCHEMA:
        raise ValueError(f"its schema {values['schema']} is newer than {SCHEMA}")
    return Registration(
        rank=_whole(values["rank"]),
        pid=_whole(values["pid"]),
        start_ticks=_whole(values["start_ticks"]),
        boot_id=str(values["boot_id"]),
        attempt=_whole(values["attempt"]),
        event_file=run_dir.path / _name(values["event_file"]),
    )


def _name(value: Any) -> str:
    """`value` if a file can have that name."""
    if not isinstance(value, str) or "\0" in value:
        raise TypeError(f"{value!r} is not the name of a file")
    os.fsencode(value)
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def stale(
    registration: Registration, run_dir: RunDir, rank: int, attempt: int, boot_id: str
) -> Refusal | None:
    """Why what was registered cannot be a process of this attempt, on this machine, in this run."""
    if registration.rank != rank:
        return Refusal(Why.UNREADABLE, f"the file of rank {rank} speaks of {registration.rank}")
    if registration.attempt != attempt:
        reason = f"rank {rank} registered in attempt {registration.attempt}, and now is {attempt}"
        return Refusal(Why.OTHER_ATTEMPT, reason)
    if registration.boot_id != boot_id:
        reason = f"rank {rank} registered on another machine, or before a reboot"
        return Refusal(Why.OTHER_BOOT, reason)
    if not _same(registration.event_file.parent, run_dir.events):
        reason = f"{registration.event_file} is not an event file of this run"
        return Refusal(Why.OTHER_RUN, reason)
    return None


def _same(folder: Path, other: Path) -> bool:
    try:
        return folder.samefile(other)
    except OSError:
        return False


def impostor(victim: Victim) -> Refusal | None:
    """Why the process behind the pidfd is not the one that registered.

    The pid names the pidfd's process as long as that lives, so its life is checked last.
    """
    pid, registration = victim.pid, victim.registration
    try:
        ticks = start_ticks(pid)
        if ticks != registration.start_ticks:
            reason = f"process {pid} started at tick {ticks}, not {registration.start_ticks}"
            return Refusal(Why.REUSED, f"{reason}: the pid was used again")
        held = holds(pid, registration.event_file)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM) and not victim.is_dead():
            return Refusal(Why.FORBIDDEN, f"process {pid} belongs to somebody else")
        return Refusal(Why.GONE, f"process {pid} is gone ({error})")
    if victim.is_dead():
        return Refusal(Why.GONE, f"process {pid} is dead")
    if not held:
        reason = f"process {pid} holds no lock on {registration.event_file}"
        return Refusal(Why.UNLOCKED, reason)
    return None


def holds(pid: int, file: Path) -> bool:
    """Whether process `pid` itself took an exclusive `flock` on `file` and has it still.

    The kernel writes a `lock:` line below a descriptor only where the lock is that descriptor's,
    and with the pid that took it: a forked loader worker has the descriptor and not the pid.
    """
    try:
        wanted = file.stat()
    except FileNotFoundError:
        return False
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found = link.stat()
            if (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino):
                continue
            notes = Path(f"/proc/{pid}/fdinfo/{link.name}").read_text()
        except FileNotFoundError:  # closed since it was listed, or no file at all
            continue
        if any(_is_own_lock(line, pid) for line in notes.splitlines()):
            return True
    return False


def _is_own_lock(line: str, pid: int) -> bool:
    """Whether a line of fdinfo reads `lock: 1: FLOCK ADVISORY WRITE <pid> …`."""
    words = line.split()
    return words[:1] == ["lock:"] and words[2:6] == ["FLOCK", "ADVISORY", "WRITE", str(pid)]
