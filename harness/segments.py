"""Time by phase, counted to the nanosecond. A stretch is counted once nothing later can change it.

Work waits for its step to be finished; a failure makes it `interrupted` instead. What follows a
stretch that waits, waits behind it, so that segments come out in order, with no gap and no overlap.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from harness.phases import CERTAIN, PRODUCTIVE, Phase


class Segment(NamedTuple):
    """A stretch of time that the run spent in one phase. One is made per step: a tuple is made fastest."""

    phase: Phase
    start_ns: int
    end_ns: int
    attempt: int
    cut_short: bool = False
    """A save's stall that a failure ended."""
    lost: bool = False
    """Work or evaluation that a later attempt went back behind; known to `timeline` only."""

    @property
    def duration_ns(self) -> int:
        """How long it lasted."""
        return self.end_ns - self.start_ns


def _zeros() -> dict[Phase, int]:
    """No time yet in any phase that takes time."""
    return {phase: 0 for phase in Phase if phase is not Phase.FINISHED}


@dataclass(slots=True)
class Meter:
    """The phase that the run is in, what waits to be counted, and what is."""

    phase: Phase = Phase.DOWN
    since_ns: int = 0
    """Start of the open stretch."""
    attempt: int = -1
    """Whose time it is."""
    ranks: int = 0
    """How many ranks pay for it."""
    pending: list[Segment] = field(default_factory=list)
    totals: dict[Phase, int] = field(default_factory=_zeros)
    earlier: dict[int, dict[Phase, int]] = field(default_factory=dict)
    """Of the totals: time with other numbers of ranks, by number. Their product may exceed 64 bits."""
    before: dict[Phase, int] = field(default_factory=_zeros)
    """What the totals were when `ranks` became what it is."""
    productive_ns: int = 0
    cut_short_ns: int = 0

    @property
    def settled_ns(self) -> int:
        """Everything before this instant is counted."""
        return self.pending[0].start_ns if self.pending else self.since_ns

    @property
    def rank_totals(self) -> dict[Phase, int]:
        """The totals times the ranks of the time."""
        paid = {phase: ns * self.ranks for phase, ns in self._since().items()}
        for ranks, times in self.earlier.items():
            for phase, ns in times.items():
                paid[phase] += ns * ranks
        return paid

    def resize(self, ranks: int) -> None:
        """Let so many ranks pay for what is counted from now on."""
        if ranks != self.ranks:
            kept = self.earlier.setdefault(self.ranks, _zeros())
            for phase, ns in self._since().items():
                kept[phase] += ns
            self.ranks, self.before = ranks, dict(self.totals)

    def _since(self) -> dict[Phase, int]:
        """Time with as many ranks as now, since there were others."""
        return {phase: ns - self.before[phase] for phase, ns in self.totals.items()}

    def close(self, at_ns: int, following: Phase) -> None:
        """End the open stretch; the next one is in `following`."""
        if at_ns > self.since_ns:
            self.pending.append(Segment(self.phase, self.since_ns, at_ns, self.attempt))
        self.phase, self.since_ns = following, at_ns

    def settle(self) -> list[Segment]:
        """Count what is pending as what it is."""
        settled, self.pending = self.pending, []
        for segment in settled:
            phase, duration_ns = segment.phase, segment.end_ns - segment.start_ns
            self.totals[phase] += duration_ns
            if phase in PRODUCTIVE:
                self.productive_ns += duration_ns
            elif segment.cut_short:
                self.cut_short_ns += duration_ns
        return settled

    def advance(self, at_ns: int) -> list[Segment]:
        """Count everything up to now as what it is; the phase goes on."""
        if self.pending or at_ns <= self.since_ns:
            self.close(at_ns, self.phase)
            return self.settle()
        phase, since_ns = self.phase, self.since_ns
        duration_ns = at_ns - since_ns
        self.totals[phase] += duration_ns
        if phase in PRODUCTIVE:
            self.productive_ns += duration_ns
        self.since_ns = at_ns
        return [Segment(phase, since_ns, at_ns, self.attempt)]

    def settle_certain(self) -> list[Segment]:
        """The same, unless work waits for its step."""
        if any(segment.phase is Phase.WORK for segment in self.pending):
            return []
        return self.settle()

    def elapse(self, at_ns: int) -> list[Segment]:
        """Count the open stretch up to now, where it cannot become anything else."""
        if self.phase not in CERTAIN:
            return []
        return self.advance(at_ns)

    def interrupt(self, at_ns: int, following: Phase) -> list[Segment]:
        """Count what is pending as what it is now that its step will never be finished."""
        ended = len(self.pending)
        self.close(at_ns, following)
        self.pending = [
            _interrupted(segment, is_open=place == ended)
            for place, segment in enumerate(self.pending)
        ]
        return self.settle()


def _interrupted(segment: Segment, is_open: bool) -> Segment:
    """What a stretch was, given that its step was cut short; `is_open`: while it went on."""
    if segment.phase is Phase.WORK or (is_open and segment.phase is Phase.EVALUATION):
        return segment._replace(phase=Phase.INTERRUPTED)
    if is_open and segment.phase is Phase.SAVE_STALL:
        return segment._replace(cut_short=True)
    return segment


# ── lists of them ───────────────────────────────────────────────────────────────────────────────


def append(segments: list[Segment], segment: Segment) -> None:
    """Add the next stretch of time; neighbours that are alike become one."""
    if segments:
        phase, start_ns, _, attempt, cut_short, lost = segments[-1]
        if segment[0] is phase and segment[3:] == (attempt, cut_short, lost):
            segments[-1] = Segment(phase, start_ns, segment[2], attempt, cut_short, lost)
            return
    segments.append(segment)


def mark_lost(segments: list[Segment], since_ns: int) -> None:
    """Productive time from `since_ns` on is lost; a segment that lies across it is cut in two."""
    tail: list[Segment] = []
    while segments and segments[-1].end_ns > since_ns:
        segment = segments.pop()
        if segment.phase not in PRODUCTIVE:
            tail.append(segment)
            continue
        start_ns = max(segment.start_ns, since_ns)
        tail.append(segment._replace(start_ns=start_ns, lost=True))
        if segment.start_ns < start_ns:
            tail.append(segment._replace(end_ns=start_ns))
    for segment in reversed(tail):
        append(segments, segment)
