"""Tells whether a writer of the log still lives: it holds a lock on its file for as long as it does.

A lock goes with its process, however that ended; a pid could be another process by now.
"""

import fcntl
import os
from pathlib import Path

from harness.account import Account
from harness.rundir import RunDir

TORCHRUN = "torchrun"


def lives(run_dir: RunDir, writer: str) -> bool:
    """Whether the process that writes as `writer` is alive on this machine."""
    roll = 0
    while (path := run_dir.event_file(writer, roll)).exists():
        if _is_locked(path):
            return True
        roll += 1
    return False


def launcher_lives(run_dir: RunDir, account: Account) -> bool:
    """Whether anybody leads the run; under plain `torchrun` rank 0 speaks for it."""
    return lives(run_dir, "rank-0" if account.tool == TORCHRUN else "launcher-0")


def _is_locked(path: Path) -> bool:
    """Whether somebody holds the lock; taken in shared mode, and for an instant alone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
