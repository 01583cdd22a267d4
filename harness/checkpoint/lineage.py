"""Which commits count: those on the chain of attempts that led to the newest one.

Each attempt, once it has chosen, records the attempt and the step that it resumed from. An attempt on
the chain counts up to the step at which its child departed; what a zombie commits beyond that never
existed. This is both the fence against zombies and the meaning of lineage.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Departure:
    """Where an attempt began."""

    parent: int | None
    """The attempt that had saved the state it resumed from; None started from nothing."""
    step: int
    """Finished steps of that state; 0 from nothing."""
    memory: bool = False
    """That state was in memory; none of the parent's may ever have been committed."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The attempts that count, and how far each of them does."""

    newest: int | None
    """The newest attempt that has chosen, or None where none has."""
    limits: Mapping[int, int | None]
    """Attempt to the last step of it that counts; None counts without end."""

    def accepts(self, step: int, attempt: int) -> bool:
        """True if a commit of `attempt` at `step` belongs to the run's history."""
        if attempt not in self.limits:
            return False
        limit = self.limits[attempt]
        return limit is None or step <= limit


def chain(departures: Mapping[int, Departure]) -> Chain:
    """The chain of the newest attempt among `departures`.

    A parent of which no record is left still counts up to the departure. Raises `ValueError` where
    an attempt names itself or a later one as its parent, since attempts only ever count up.
    """
    if not departures:
        return Chain(None, {})
    newest = max(departures)
    limits: dict[int, int | None] = {newest: None}
    attempt = newest
    while attempt in departures:
        departure = departures[attempt]
        if departure.parent is None:
            break
        if departure.parent >= attempt:
            raise ValueError(
                f"attempt {attempt} claims to descend from attempt {departure.parent}, which is not"
                " older: the records beside the checkpoints are damaged"
            )
        attempt = departure.parent
        limits[attempt] = departure.step
    return Chain(newest, limits)


def was_committed(departures: Mapping[int, Departure]) -> bool:
    """True if the newest attempt descends from a state that was committed."""
    attempt = max(departures, default=0)
    while (departure := departures.get(attempt)) is not None:
        if departure.parent is None or departure.parent >= attempt:
            return False
        if not departure.memory:
            return True
        attempt = departure.parent
    return False
