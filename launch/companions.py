"""Processes that stand beside the job: the exporter of metrics, and the injector of faults.

They are started as commands, so this package imports neither; they die with the launcher by their own
doing (`--with-parent`). Training goes on without them, and that is said.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from harness.parent import die_with

STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Companion:
    """A running companion; `fileno` becomes readable when it ends."""

    name: str
    process: subprocess.Popen[bytes]
    pidfd: int

    def fileno(self) -> int:
        """Its pidfd."""
        return self.pidfd

    def stop(self) -> None:
        """Ask it to end, and end it if it does not."""
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.pidfd)


def start(name: str, command: Sequence[str], log: IO[bytes]) -> Companion:
    """Start `python -m …`; what it prints goes to `log`."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        # Until it sees to that itself. No other thread runs yet, which is what makes this safe.
        preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509
    )
    return Companion(name, process, os.pidfd_open(process.pid))


def exporter(run_dir: Path, port: int | None) -> list[str]:
    """The command that serves the run's metrics; None takes the exporter's own default port."""
    where = [] if port is None else ["--port", str(port)]
    return ["harness", "export", str(run_dir), *where, "--with-parent"]


def injector(run_dir: Path) -> list[str]:
    """The command that applies the run's tape of faults."""
    return ["faultinject", "inject", "--run", str(run_dir), "--with-parent"]


def compiler(plan: Path, ranks: int, tape: Path) -> list[str]:
    """The command that makes a tape of a plan."""
    return ["faultinject", "compile", str(plan), "--ranks", str(ranks), "--out", str(tape)]


def checker(tape: Path) -> list[str]:
    """The command that says whether a tape can be read."""
    return ["faultinject", "check", str(tape)]
