"""Who is told of what happens to checkpoints: the log, and people."""

import sys
from typing import Protocol

from harness.events import Event


class Records(Protocol):
    """Where events are written, from any thread."""

    def write(self, event: Event, /) -> object:
        """Write one event."""


def said(error: BaseException) -> str:
    """What an error says, and of what kind it is."""
    return f"{type(error).__name__}: {error}"


def warn(line: str) -> None:
    """One line for people."""
    sys.stderr.write(f"harness: {line}\n")
