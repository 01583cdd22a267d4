"""The newest minutes of a run as a strip of equal cells: pure.

Cells lie on a grid of absolute time, so that a strip that is drawn again moves by whole cells and a
short stall does not flicker. What a dead launcher never wrote is `down`.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from harness.phases import Phase
from harness.present import Present
from harness.report.cells import cells, kind_of
from harness.report.spread import seconds
from harness.segments import Segment

CELLS = 240
WINDOWS_S = (60, 300, 900)


def shown(now: Present, at_ns: int) -> list[Segment]:
    """The time that is remembered up to `at_ns`; of a run that is over, up to its end."""
    account = now.account
    open_ns = at_ns if now.is_led else account.at_ns
    segments = [*account.recent.segments, *account.unsettled(open_ns)]
    if segments and now.phase is Phase.DOWN and at_ns > segments[-1].end_ns:
        segments.append(Segment(Phase.DOWN, segments[-1].end_ns, at_ns, account.attempt))
    return segments


def strip(segments: Sequence[Segment], failures_ns: Sequence[int], window_s: int) -> dict[str, Any]:
    """The last `window_s` of `segments`: runs of equal cells, and the time in each kind."""
    cell_ns = window_s * 1_000_000_000 // CELLS
    end_ns = -(-segments[-1].end_ns // cell_ns) * cell_ns if segments else 0
    first = end_ns // cell_ns - CELLS
    if segments:
        first = max(first, segments[0].start_ns // cell_ns)
    clipped = _stretched(segments, first * cell_ns, end_ns)
    count = end_ns // cell_ns - first
    noticed = [at_ns for at_ns in failures_ns if first * cell_ns < at_ns <= end_ns]
    drawn = cells(clipped, noticed, count)
    return {
        "window_s": window_s,
        "until_s": seconds(end_ns),
        "of": CELLS,
        "blank": CELLS - len(drawn),
        "runs": [[kind, len(list(run))] for kind, run in groupby(cell.kind for cell in drawn)],
        "failures": [CELLS - len(drawn) + at for at, cell in enumerate(drawn) if cell.failed],
        "seconds": {kind: seconds(ns) for kind, ns in _times(clipped).items()},
    }


def _stretched(segments: Sequence[Segment], low_ns: int, end_ns: int) -> list[Segment]:
    """What lies between two marks of the grid; the first and the last reach them."""
    inside = [
        one._replace(start_ns=max(one.start_ns, low_ns))
        for one in segments
        if one.end_ns > max(low_ns, one.start_ns)
    ]
    if inside:
        inside[0] = inside[0]._replace(start_ns=low_ns)
        inside[-1] = inside[-1]._replace(end_ns=end_ns)
    return inside


def _times(segments: Sequence[Segment]) -> Mapping[str, int]:
    times: dict[str, int] = {}
    for one in segments:
        times[kind_of(one)] = times.get(kind_of(one), 0) + one.duration_ns
    return times
