"""Processes that stand beside the job: saver of checkpoints, exporter of metrics, injector of faults.

They are started as commands, so this package imports none; they die with the launcher by their own
doing (`--with-parent`). Training goes on without them, and that is said.
"""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from harness import parent
from harness.checkpoint.whereabouts import PREFIX
from launch import processes

STOP_TIMEOUT_S = 5.0
SAVER, EXPORTER, INJECTOR = "saver", "exporter", "injector"


@dataclass(frozen=True, slots=True)
class Companion:
    """A running companion; `fileno` becomes readable when it ends."""

    name: str
    process: subprocess.Popen[bytes]
    pidfd: int

    def fileno(self) -> int:
        """Its pidfd."""
        return self.pidfd

    def end(self) -> None:
        """Kill it if it lives, and forget it."""
        processes.end(self.process)
        os.close(self.pidfd)


def start(
    name: str, command: Sequence[str], log: IO[bytes], *, outlives: bool = False
) -> Companion:
    """Start `python -m …`; what it prints goes to `log`.

    It is killed with this process, or only told by SIGHUP if it `outlives` it for what it has in hand. No
    code of ours runs between fork and exec: threads of this process could have left a lock held there.
    """
    end = signal.SIGHUP if outlives else signal.SIGKILL
    tied = ("-P", "-S", parent.__file__, str(int(end)), str(os.getpid()))
    process = subprocess.Popen(
        [sys.executable, *tied, "-m", *command],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,  # a terminal's signals are the launcher's to judge
    )
    return Companion(name, process, os.pidfd_open(process.pid))


def saver_address() -> str:
    """An abstract socket's name that no other saver of this machine has."""
    return f"{PREFIX}{secrets.token_hex(8)}"


def saver(run_dir: Path, address: str, linger_s: float) -> list[str]:
    """The command that makes copied states durable, and is told of them at `address`."""
    end = ["--with-parent", "--linger", str(linger_s)]
    return ["harness.checkpoint.saver", str(run_dir), "--address", address, *end]


def exporter(run_dir: Path, port: int | None, host: str, access: Path | None) -> list[str]:
    """The command that serves the run's metrics; None takes the exporter's own default port."""
    where = ["--host", host] + ([] if port is None else ["--port", str(port)])
    where += [] if access is None else ["--access", str(access)]
    return ["harness", "export", str(run_dir), *where, "--with-parent"]


def injector(run_dir: Path) -> list[str]:
    """The command that applies the run's tape of faults."""
    return ["faultinject", "inject", "--run", str(run_dir), "--with-parent"]


def compiler(plan: Path, ranks: int, tape: Path, checkpoints: str) -> list[str]:
    """The command that makes a tape of a plan, for a run whose checkpoints are there."""
    made = ["faultinject", "compile", str(plan), "--ranks", str(ranks), "--out", str(tape)]
    return [*made, "--checkpoints", checkpoints]


def checker(tape: Path, ranks: int, checkpoints: str) -> list[str]:
    """The command that says whether a tape is one for so many ranks, whose checkpoints are there."""
    where = ["--checkpoints", checkpoints]
    return ["faultinject", "check", str(tape), "--ranks", str(ranks), *where]
