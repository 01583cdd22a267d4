"""Memories of ranks that have gone, seen by another process: a saver lends them, or they have a name."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from harness.checkpoint import slot
from harness.checkpoint.memory import seen
from harness.checkpoint.named import Folder
from harness.checkpoint.wire import Asked, Lent, Line, Looking

_TIMEOUT_S = 40.0
"""More than a saver takes to seal what it has."""
_ANSWERS_WITHIN_S = 3.0
"""A saver that is stopped or hangs is not waited for: there is the storage."""


@dataclass(frozen=True, slots=True)
class Loan:
    """A memory that a saver has lent."""

    rank: int
    slot: int
    busy: bool
    descriptor: int
    view: memoryview


def borrow(address: str, run_id: str, rank: int | None) -> Iterator[Loan]:
    """What the saver at `address` holds. Raises `OSError`, `EOFError` where there is none."""
    line = Line.to(address, _TIMEOUT_S)
    try:
        yield from lent(line, run_id, rank)
    finally:
        line.close()


def lent(line: Line, run_id: str, rank: int | None) -> Iterator[Loan]:
    """What the saver at the other end holds; asked for as the first thing said.

    Raises `TimeoutError` where nobody answers soon.
    """
    line.send(Asked(run_id, rank))
    if not line.arrives(_ANSWERS_WITHIN_S):
        raise TimeoutError(f"the saver does not answer within {_ANSWERS_WITHIN_S:g} s")
    while True:
        message, descriptor = line.receive()
        if isinstance(message, Looking):
            continue
        if not isinstance(message, Lent) or descriptor is None:
            return
        view = seen(os.dup(descriptor))
        yield Loan(message.rank, message.slot, message.busy, descriptor, view)


def opened(folder: Folder, rank: int | None) -> Iterator[Loan]:
    """What a dead attempt left under a name; what nobody had sealed is sealed now."""
    for owner, number, path in folder.files(rank):
        with suppress(OSError, ValueError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            view = seen(os.dup(descriptor))
            slot.seal(view, descriptor)
            yield Loan(owner, number, busy=False, descriptor=descriptor, view=view)
