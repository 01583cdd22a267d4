"""Whether a save can be written yet, by what the ranks have handed over: a pure decision.

Nothing is written before every share is there. What the death of a rank cuts short is thus nothing but
memory, and layouts that differ are found before a byte is stored.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto


class Next(Enum):
    """What becomes of a save."""

    WAIT = auto()
    WRITE = auto()
    FAIL = auto()


@dataclass(frozen=True, slots=True)
class Collected:
    """What has come of one save."""

    world_size: int
    failures: Mapping[int, str | None]
    """Of every rank that spoke: why it has no share, or None where it has one."""
    gone: Collection[int]
    """Ranks whose process or connection has ended."""
    waited_s: float
    """Since the first of them spoke."""
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and why a save fails."""

    next: Next
    reason: str = ""


def decide(now: Collected) -> Decision:
    """Whether to wait, to write, or to let it be.

    A failure is told once rank 0 has spoken, so that no save ends in the log before it began there.
    """
    ranks = range(now.world_size)
    missing = [rank for rank in ranks if rank not in now.failures]
    bad = [rank for rank in ranks if now.failures.get(rank) is not None]
    dead = [rank for rank in missing if rank in now.gone]
    if bad and (0 in now.failures or 0 in now.gone):
        return Decision(Next.FAIL, f"rank {bad[0]}: {now.failures[bad[0]]}")
    if dead and (0 in now.failures or 0 in now.gone):
        return Decision(Next.FAIL, f"rank {dead[0]} was gone before its share was copied")
    if not missing:
        return Decision(Next.WRITE)
    if now.waited_s >= now.deadline_s:
        names = ", ".join(map(str, missing))
        return Decision(Next.FAIL, f"no report of rank {names} within {now.deadline_s:g} s")
    return Decision(Next.WAIT)
