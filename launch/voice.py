"""How a launcher speaks, to people and into the log.

That nobody listens, or that the disk is full, is no reason to end a job.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from harness.events import Entry, Event
from harness.recorder import Recorder
from harness.rundir import RunDir


class Voice:
    """Speaks to whoever listens; that nobody does, or the disk is full, is no reason to stop."""

    def say(self, line: str) -> None:
        """One thing on standard output."""
        try:
            print(line, flush=True)  # noqa: T201
        except OSError:
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115

    def complain(self, line: str) -> None:
        """One thing on standard error."""
        with suppress(OSError):
            print(line, file=sys.stderr, flush=True)  # noqa: T201


class Chronicle(Recorder):
    """The launcher's log: a full disk costs what it would have told, and not the job."""

    def __init__(self, run_dir: RunDir, run_id: str, complain: Callable[[str], None]) -> None:
        super().__init__(run_dir, run_id, "launcher-0")
        self._complain = complain
        self._lost = False

    def write(self, event: Event, at_ns: int | None = None) -> Entry:
        """See `Recorder`; what cannot be written is said once."""
        try:
            return super().write(event, at_ns)
        except OSError as error:
            if not self._lost:
                self._complain(f"harness run: the log cannot be written any more: {error}")
            self._lost = True
            return Entry(self.now_ns() if at_ns is None else at_ns, self.attempt, -1, event)
