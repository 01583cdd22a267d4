"""Tells whether a writer of the log still lives: it holds a lock on its file for as long as it does."""

from contextlib import suppress

from harness import locks
from harness.account import Account
from harness.rundir import RunDir

TORCHRUN = "torchrun"


def lives(run_dir: RunDir, writer: str) -> bool:
    """Whether the process that writes as `writer` is alive on this machine."""
    roll = 0
    while (path := run_dir.event_file(writer, roll)).exists():
        with suppress(OSError):  # what cannot be opened tells nothing
            if locks.is_held(path):
                return True
        roll += 1
    return False


def launcher_lives(run_dir: RunDir, account: Account) -> bool:
    """Whether anybody leads the run; under plain `torchrun` rank 0 speaks for it."""
    return lives(run_dir, "rank-0" if account.tool == TORCHRUN else "launcher-0")
