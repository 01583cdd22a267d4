"""An event, the entry that carries it, and the header of the file that it stands in.

What an entry belongs to is settled here: an instant, an attempt, a writer and a place in its file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

SCHEMA = 1
"""Version of the log's form. Readers accept this one and all older ones."""


@dataclass(frozen=True, slots=True)
class Event:
    """Base of everything that can happen."""


@dataclass(frozen=True, slots=True)
class Unknown(Event):
    """An event of a later schema, kept as it was; it changes nothing in any phase."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of every event file, and again whenever another process goes on with it."""

    schema: int
    run_id: str
    writer: str
    """`launcher-0`, `rank-3`, `saver-0`, `injector`."""
    host: str
    boot_id: str
    pid: int
    monotonic_ns: int
    """CLOCK_MONOTONIC and …"""
    wall_ns: int
    """… the Unix clock, read at one instant."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An event with its instant, the attempt that it belongs to, and its place in its file."""

    at_ns: int
    """In a file: the writer's CLOCK_MONOTONIC. Once read: Unix time on the run's one axis."""
    attempt: int
    sequence: int
    """Counts from 0 in each writer's life; breaks ties between entries of one writer."""
    event: Event
    writer: str = ""


@cache
def rank_of(writer: str) -> int | None:
    """The rank that writes as `writer`; None for a launcher and the like."""
    name, _, number = writer.partition("-")
    return int(number) if name == "rank" and number.isdecimal() and len(number) < 10 else None


def event_types() -> dict[str, type[Event]]:
    """Every known event by its name in the log."""
    # By name: each slotted dataclass leaves its unslotted first form among the subclasses for a while.
    kinds = {kind.__name__: kind for kind in Event.__subclasses__()}
    return {name: kind for name, kind in kinds.items() if name != Unknown.__name__}
