"""Ties a process to the one that started it: it is told when that one dies, however it dies."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send `number` to this process when `parent` dies; at once if it has.

    The kernel means the *thread* that started this process: a parent must do so in one that stays.
    Raises `OSError` where the kernel does not know how.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


if __name__ == "__main__":
    # `parent.py SIGNAL PARENT ARGUMENTS…` becomes `python ARGUMENTS…`, tied from its first moment.
    die_with(int(sys.argv[2]), signal.Signals(int(sys.argv[1])))
    os.execv(sys.executable, [sys.executable, *sys.argv[3:]])  # noqa: S606
