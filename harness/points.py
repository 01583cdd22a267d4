"""Named points in a run that faults can hang on. Unarmed, reaching one costs a dictionary look-up.

Whoever wants to act at a point arms it in this process; the library only says that it got there.
"""

from collections.abc import Callable
from enum import StrEnum


class Point(StrEnum):
    """Where a run can be hit from inside a rank."""

    JOIN = "join"
    RESTORE = "restore"
    STEP_START = "step.start"
    STEP_END = "step.end"
    SAVE_COPY = "save.copy"
    SAVE_SHARD = "save.shard"
    SAVE_MANIFEST = "save.manifest"
    SAVE_COMMIT = "save.commit"
    RETENTION = "retention"


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
