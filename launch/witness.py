"""What the run directory says about ranks that ended: where they were, and what they raised."""

import json
from pathlib import Path
from typing import Any

from harness import slots
from harness.rundir import RunDir
from harness.slots import Mark, Slot
from launch.exits import Exit, Raised
from launch.orders import Ended


def exit_of(run_dir: RunDir, attempt: int, rank: int, ended: Ended) -> Exit:
    """All that is known about how `rank` ended in `attempt`."""
    slot = _slot(run_dir, attempt, rank) if has_joined(run_dir, attempt, rank) else None
    return Exit(
        rank=rank,
        status=ended.status,
        at_ns=ended.at_ns,
        mark=None if slot is None else slot.mark,
        step=None if slot is None else slot.step,
        raised=_raised(run_dir.error(attempt, rank)),
    )


def raising(run_dir: RunDir, attempt: int, rank: int) -> Exit | None:
    """The exit that `rank`, which still lives, is about to make because of an exception."""
    raised = _raised(run_dir.error(attempt, rank))
    if raised is None or raised.at_ns is None:
        return None
    return Exit(rank=rank, status=1, at_ns=raised.at_ns, raised=raised)


def has_joined(run_dir: RunDir, attempt: int, rank: int) -> bool:
    """True if `rank` registered itself in `attempt`."""
    worker = _read(run_dir.worker(rank))
    return worker is not None and worker.get("attempt") == attempt


def any_joined(run_dir: RunDir, attempt: int, world_size: int) -> bool:
    """True if any rank registered itself in `attempt`."""
    return any(has_joined(run_dir, attempt, rank) for rank in range(world_size))


def uses_library(run_dir: RunDir) -> bool:
    """True if a rank of any attempt registered itself: then every attempt's progress can be told."""
    return any(run_dir.workers.glob("*.json"))


def best_step(run_dir: RunDir, attempt: int, world_size: int) -> int | None:
    """Steps finished by the rank that got furthest in `attempt`; None if no rank joined."""
    found = [_slot(run_dir, attempt, rank) for rank in range(world_size)]
    return max((slot.step for slot in found if slot is not None), default=None)


def saved_step(run_dir: RunDir, attempt: int, world_size: int) -> int | None:
    """The step whose state every rank said to be durable before it left; None if one did not."""
    found = [_slot(run_dir, attempt, rank) for rank in range(world_size)]
    saved = [it.step for it in found if it is not None and it.mark in (Mark.DRAINED, Mark.FINISHED)]
    return max(saved) if len(saved) == world_size else None


def has_stepped(run_dir: RunDir, attempt: int, world_size: int) -> bool:
    """True if a rank finished a step of its own in `attempt`: one resumed from does not count."""
    found = [_slot(run_dir, attempt, rank) for rank in range(world_size)]
    return any(slot is not None and slot.own_ns + slot.wait_ns > 0 for slot in found)


def _slot(run_dir: RunDir, attempt: int, rank: int) -> Slot | None:
    slot = slots.read(run_dir.slot(rank))
    return slot if slot is not None and slot.attempt == attempt else None


def _raised(path: Path) -> Raised | None:
    """What an error file tells, in the form of torch's `record`, which scripts may use themselves."""
    content = _read(path)
    if content is None:
        return None
    message = content.get("message")
    if isinstance(message, dict):
        message = message.get("message")
    text = str(message)
    at_ns = content.get("at_ns")
    return Raised(
        kind=str(content.get("type", text.partition(":")[0])),
        message=text,
        where=str(content.get("where", "")),
        at_ns=at_ns if isinstance(at_ns, int) else None,
    )


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON object; None if there is none, or if a killed process left half of it."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
