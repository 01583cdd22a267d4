"""Time divided into equal cells, for strips of any kind.

A cell shows the phase that most of its time was spent in, and always whether a failure was noticed in
it: at ten thousand to one a restart would otherwise drown in the work around it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.phases import PRODUCTIVE
from harness.segments import Segment

LOST = "lost"


@dataclass(frozen=True, slots=True)
class Cell:
    """A stretch of the run, equally long for all cells."""

    kind: str
    """A phase, or `lost`."""
    failed: bool = False
    """A failure was noticed in it."""


def cells(segments: Sequence[Segment], failures_ns: Sequence[int], count: int) -> list[Cell]:
    """Divide the time that `segments` cover into `count` cells."""
    if not segments:
        return []
    start_ns, wall_ns = segments[0].start_ns, segments[-1].end_ns - segments[0].start_ns
    if wall_ns <= 0:
        return []
    shares: list[dict[str, int]] = [{} for _ in range(count)]
    failed = {(at_ns - 1 - start_ns) * count // wall_ns for at_ns in failures_ns}
    for segment in segments:
        begin, end = segment.start_ns - start_ns, segment.end_ns - start_ns
        first, last = begin * count // wall_ns, min((end * count - 1) // wall_ns, count - 1)
        for place in range(first, last + 1):
            inside = min(end * count, (place + 1) * wall_ns) - max(begin * count, place * wall_ns)
            share = shares[place]
            share[kind_of(segment)] = share.get(kind_of(segment), 0) + inside
    return [
        Cell(max(share, key=share.__getitem__), place in failed)
        for place, share in enumerate(shares)
    ]


def kind_of(segment: Segment) -> str:
    """Its phase; `lost` for work that the run went back behind."""
    return LOST if segment.lost and segment.phase in PRODUCTIVE else segment.phase
