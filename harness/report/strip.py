"""A run's phases drawn as a strip of cells, a letter or a block each, from left to right.

A cell shows the phase that most of its time was spent in, and always whether a failure was noticed in
it: at ten thousand to one a restart would otherwise drown in the work around it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from harness.phases import PRODUCTIVE, Phase
from harness.segments import Segment

LOST = "lost"
FAILURE = "x"
FAILURE_STYLE = "bold red"
LOOKS: Mapping[str, tuple[str, str]] = {
    Phase.WORK: ("█", "green"),
    Phase.EVALUATION: ("▓", "cyan"),
    LOST: ("░", "red"),
    Phase.STARTUP: ("s", "blue"),
    Phase.RESTORE: ("r", "blue"),
    Phase.WARMUP: ("w", "blue"),
    Phase.SAVE_STALL: ("c", "magenta"),
    Phase.INTERRUPTED: ("i", "red"),
    Phase.RESTART: ("R", "yellow"),
    Phase.DRAIN: ("d", "white"),
    Phase.DOWN: ("_", "bright_black"),
}
"""Symbol and colour of each phase, and of work that was lost."""

CELL_NS = 250_000_000
"""A run gets as many rows as it takes to show this much time in a cell, if they fit."""
MOST_ROWS = 8


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
            share[_kind(segment)] = share.get(_kind(segment), 0) + inside
    return [
        Cell(max(share, key=share.__getitem__), place in failed)
        for place, share in enumerate(shares)
    ]


def rows(segments: Sequence[Segment], failures_ns: Sequence[int], width: int) -> list[Text]:
    """The strip, in as many rows of `width` cells as the run's length asks for."""
    if not segments:
        return []
    wall_ns = segments[-1].end_ns - segments[0].start_ns
    count = min(MOST_ROWS, max(1, -(-wall_ns // (width * CELL_NS))))
    drawn = [_drawn(cell) for cell in cells(segments, failures_ns, width * count)]
    return [Text.assemble(*drawn[at : at + width]) for at in range(0, len(drawn), width)]


def legend(segments: Sequence[Segment], failures_ns: Sequence[int]) -> Text:
    """What the symbols mean that `segments` need."""
    present = {_kind(segment) for segment in segments}
    parts: list[tuple[str, str]] = []
    for kind, (symbol, style) in LOOKS.items():
        if kind in present:
            parts += [(symbol, style), (f" {kind.replace('_', ' ')}  ", "dim")]
    if failures_ns:
        parts += [(FAILURE, FAILURE_STYLE), (" failure", "dim")]
    return Text.assemble(*parts)


def _kind(segment: Segment) -> str:
    return LOST if segment.lost and segment.phase in PRODUCTIVE else segment.phase


def _drawn(cell: Cell) -> tuple[str, str]:
    return (FAILURE, FAILURE_STYLE) if cell.failed else LOOKS[cell.kind]
