"""The log as a timeline: consecutive segments, each in exactly one phase, with lost work marked.

`Fold` does the counting, entry by entry and in bounded memory; this keeps what it settles. A report
reads the timeline, an exporter or a live view the fold alone; both show the same figures.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.account import Account
from harness.events import Entry, StepFinished, TrainingResumed
from harness.fold import Fold, TimelineError
from harness.phases import NEXT_PHASE, Phase
from harness.segments import Segment, append, mark_lost

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
            mark_lost(segments, fold.last_rollback.since_ns)
            _give_up(kept, lost, _resumed_step(entry))
        elif fold.ledger.lost_steps > lost_steps:
            lost.append(entry)
            continue
        for segment in settled:
            append(segments, segment)
        if isinstance(entry.event, StepFinished):
            kept.append(entry)
    return Timeline(segments, kept, lost, fold)


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
