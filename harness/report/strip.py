"""A run's phases drawn as a strip of cells, a letter or a block each, from left to right."""

from collections.abc import Mapping, Sequence

from rich.text import Text

from harness.phases import Phase
from harness.report.cells import LOST, Cell, cells, kind_of
from harness.segments import Segment

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
    present = {kind_of(segment) for segment in segments}
    parts: list[tuple[str, str]] = []
    for kind, (symbol, style) in LOOKS.items():
        if kind in present:
            parts += [(symbol, style), (f" {kind.replace('_', ' ')}  ", "dim")]
    if failures_ns:
        parts += [(FAILURE, FAILURE_STYLE), (" failure", "dim")]
    return Text.assemble(*parts)


def _drawn(cell: Cell) -> tuple[str, str]:
    return (FAILURE, FAILURE_STYLE) if cell.failed else LOOKS[cell.kind]
