"""Named points in a run that faults can hang on. Unarmed, reaching one costs a dictionary look-up.

Whoever wants to act at a point arms it in this process; the library only says that it got there.
"""

from collections.abc import Callable
from enum import StrEnum


class Point(StrEnum):
    """Where a run can be hit from inside one of its processes."""

    ATTEMPT = "attempt"
    """The launcher has claimed an attempt's number and started no rank of it."""
    FORK = "fork"
    """The fork server is about to fork a rank."""
    FORKED = "forked"
    """A rank's process exists and has done nothing yet."""
    JOIN = "join"
    GROUP = "group"
    """A rank is about to form the process group."""
    RESTORE = "restore"
    RESTORE_READ = "restore.read"
    """A file of a checkpoint is half read."""
    STEP_START = "step.start"
    STEP_END = "step.end"
    SAVE_COPY = "save.copy"
    """A part of the state is copied; the rest is not."""
    SAVE_LABEL = "save.label"
    """All of a rank's share is copied, and nothing says so yet."""
    SAVE_SHARD = "save.shard"
    """A shard is half written."""
    SAVE_BETWEEN = "save.between"
    """A shard is whole, and others may not be."""
    SAVE_MANIFEST = "save.manifest"
    """All shards are whole, and there is no manifest."""
    SAVE_COMMIT = "save.commit"
    """The manifest is whole, and there is no commit."""
    RETENTION = "retention"
    """Between any two deletions of what is no longer needed."""


_armed: dict[Point, Callable[[], None]] = {}


def reach(point: Point) -> None:
    """Say that the run got to `point`; whatever was armed there acts now."""
    action = _armed.get(point)
    if action is not None:
        action()


def arm(point: Point, action: Callable[[], None]) -> None:
    """Call `action` each time this process reaches `point`, in place of what was armed before."""
    _armed[point] = action


def disarm() -> None:
    """Forget every armed point."""
    _armed.clear()
