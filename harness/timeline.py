"""The log as a timeline: consecutive segments, each in exactly one phase, with lost work marked.

`Fold` does the counting, entry by entry and in bounded memory; this keeps what it settles. A report
reads the timeline, an exporter or a live view the fold alone; both show the same figures.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.account import Account
from harness.events import Entry, StepFinished, TrainingResumed
from harness.fold import Fold, TimelineError
from harness.phases import NEXT_PHASE, PRODUCTIVE, Phase
from harness.segments import Segment

__all__ = [
    "NEXT_PHASE",
    "Account",
    "Fold",
    "Phase",
    "Segment",
    "Timeline",
    "TimelineError",
    "timeline",
]

_ALL = 1 << 60


@dataclass(frozen=True, slots=True)
class Timeline:
    """A whole log, folded."""

    segments: Sequence[Segment]
    """In order, without gap or overlap; neighbours that are alike are one."""
    kept: Sequence[Entry]
    """The `StepFinished` of each step that the run holds in the end, once each, in order."""
    lost: Sequence[Entry]
    """The other `StepFinished`, in the order in which they were lost."""
    account: Account
    """All totals, counts and records; its lists are complete."""


def timeline(entries: Iterable[Entry]) -> Timeline:
    """Fold a whole log, in order. Raises `TimelineError` if something in it cannot have happened."""
    fold = Fold(keep=_ALL)
    segments: list[Segment] = []
    kept: list[Entry] = []
    lost: list[Entry] = []
    for entry in entries:
        rollbacks, lost_steps = fold.rollbacks, fold.ledger.lost_steps
        settled = fold.feed(entry)
        if fold.rollbacks > rollbacks and fold.last_rollback is not None:
            _mark_lost(segments, fold.last_rollback.since_ns)
            _give_up(kept, lost, _resumed_step(entry))
        elif fold.ledger.lost_steps > lost_steps:
            lost.append(entry)
            continue
        for segment in settled:
            _append(segments, segment)
        if isinstance(entry.event, StepFinished):
            kept.append(entry)
    return Timeline(segments, kept, lost, fold)


def _append(segments: list[Segment], segment: Segment) -> None:
    if segments and _kind(segments[-1]) == _kind(segment):
        segment = _part(segment, segments.pop().start_ns, segment.end_ns, lost=segment.lost)
    segments.append(segment)


def _kind(segment: Segment) -> tuple[Phase, int, bool, bool]:
    return segment.phase, segment.attempt, segment.cut_short, segment.lost


def _mark_lost(segments: list[Segment], since_ns: int) -> None:
    """Productive time from `since_ns` on is lost; a segment that lies across it is cut in two."""
    tail: list[Segment] = []
    while segments and segments[-1].end_ns > since_ns:
        segment = segments.pop()
        if segment.phase not in PRODUCTIVE:
            tail.append(segment)
            continue
        start_ns = max(segment.start_ns, since_ns)
        tail.append(_part(segment, start_ns, segment.end_ns, lost=True))
        if segment.start_ns < start_ns:
            tail.append(_part(segment, segment.start_ns, start_ns, lost=segment.lost))
    for segment in reversed(tail):
        _append(segments, segment)


def _part(segment: Segment, start_ns: int, end_ns: int, *, lost: bool) -> Segment:
    return Segment(segment.phase, start_ns, end_ns, segment.attempt, segment.cut_short, lost)


def _give_up(kept: list[Entry], lost: list[Entry], step: int) -> None:
    """Move what was done beyond `step` from `kept` to `lost`."""
    count = len(kept)
    while count and _step(kept[count - 1]) > step:
        count -= 1
    lost += kept[count:]
    del kept[count:]


def _resumed_step(entry: Entry) -> int:
    """Where a rollback went back to: said, or implied by a step that is done again."""
    if isinstance(entry.event, TrainingResumed):
        return entry.event.step
    return _step(entry) - 1


def _step(entry: Entry) -> int:
    assert isinstance(entry.event, StepFinished)
    return entry.event.step
