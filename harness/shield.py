"""Keeps loader workers alive when SIGTERM goes to every process of a job, as Slurm sends it.

A worker that dies of it takes its rank along, in the very step whose state was to be saved. The rank
decides when its workers go: a SIGTERM that the rank itself sends is obeyed.
"""

import os
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import current_process
from typing import Any

from torch.utils.data import DataLoader


@dataclass(frozen=True, slots=True)
class Shield:
    """A `worker_init_fn` that makes its worker deaf to strangers, and then does what `own` does."""

    own: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        """In the worker, before its first sample."""
        # A handler in Python cannot tell who sent a signal; who waits for it can.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(
            target=_obey, args=(os.getppid(), _sockets()), name="harness-sigterm", daemon=True
        ).start()
        if self.own is not None:
            self.own(worker)


def shield(loader: DataLoader[Any]) -> None:
    """Shield the workers that `loader` will start."""
    if not isinstance(loader.worker_init_fn, Shield):
        loader.worker_init_fn = Shield(loader.worker_init_fn)


def _obey(rank: int, not_ours: str | None) -> None:
    while True:
        told = signal.sigwaitinfo({signal.SIGTERM})
        if told.si_pid == rank:
            if (ours := _sockets()) is not None and ours != not_ours:
                shutil.rmtree(ours, ignore_errors=True)  # an exit so short leaves it
            os._exit(0)  # as torch's own handler does


def _sockets() -> str | None:
    """The directory of sockets by which this process hands over tensors, or its parent does where it began with one."""
    found: str | None = current_process()._config.get("tempdir")  # type: ignore[attr-defined]  # nothing public says it
    return found
