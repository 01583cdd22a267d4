"""When a run first came to a target loss: steps, tokens and time. Pure; a fold over the log.

Only evaluations that the run still holds count: what it went back behind is as if it had not been. The
answer is as fine as the evaluations are far apart: between the last one above the target and the first
one at or below it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from harness.events import Entry, EvaluationFinished, StepFinished
from harness.fold import Fold, TimelineError
from harness.phases import PRODUCTIVE

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a run was when an evaluation ended."""

    step: int
    tokens: int
    """Of the steps up to and with `step`, each counted once."""
    wall_s: float
    """Since the run was first started: restarts, saves and lost work included."""
    kept_s: float
    """Work and evaluation that led there, and nothing else."""


START = Mark(0, 0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A loss on held-out data, and when it was known."""

    loss: float
    at: Mark


@dataclass(frozen=True, slots=True)
class Reached:
    """The first evaluation at or below a target."""

    loss: float
    after: Mark
    """The last evaluation before it; the run's start where there is none."""
    by: Mark
    """It."""


@dataclass(slots=True)
class _Held:
    """What the run holds so far."""

    steps: list[int] = field(default_factory=lambda: [0])
    tokens: list[int] = field(default_factory=lambda: [0])
    """In all, up to each of those steps."""
    evaluations: list[Evaluation] = field(default_factory=list)
    ahead: Evaluation | None = None
    """Of a step that is not finished yet: a loop evaluates before it asks for the next one."""

    def finish(self, event: StepFinished, fold: Fold) -> None:
        self.steps.append(event.step)
        self.tokens.append(self.tokens[-1] + event.tokens)
        if self.ahead is not None and self.ahead.at.step == event.step:
            at = replace(self.ahead.at, tokens=self.tokens[-1], kept_s=_kept_s(fold))
            self.evaluations.append(replace(self.ahead, at=at))
        self.ahead = None

    def go_back(self, step: int, kept_s: float) -> None:
        """The run holds `step` and `kept_s` again; the evaluation after that very step may be charged too."""
        count = bisect_right(self.steps, step)
        del self.steps[count:], self.tokens[count:]
        self.ahead = None
        self.evaluations = [
            replace(one, at=replace(one.at, kept_s=min(one.at.kept_s, kept_s)))
            for one in self.evaluations
            if one.at.step <= step
        ]

    def evaluate(self, event: EvaluationFinished, fold: Fold) -> None:
        if event.loss is None:
            return
        wall_s = (fold.at_ns - (fold.start_ns or 0)) / _NS
        told = Evaluation(event.loss, Mark(event.step, self.tokens[-1], wall_s, _kept_s(fold)))
        if event.step > fold.step:
            self.ahead = told
        else:
            self.evaluations.append(told)


def _kept_s(fold: Fold) -> float:
    return (sum(fold.totals[phase] for phase in PRODUCTIVE) - fold.lost_ns) / _NS


def evaluations(entries: Iterable[Entry]) -> list[Evaluation]:
    """The evaluations that the run holds in the end, in order. Impossible entries are left out."""
    fold, held = Fold(), _Held()
    for entry in entries:
        rollbacks, lost_steps, evaluated = fold.rollbacks, fold.ledger.lost_steps, _last(fold)
        try:
            fold.feed(entry)
        except TimelineError:
            continue
        event = entry.event
        if fold.rollbacks > rollbacks:
            held.go_back(fold.step - isinstance(event, StepFinished), _kept_s(fold))
        elif fold.ledger.lost_steps > lost_steps:
            continue
        if isinstance(event, StepFinished):
            held.finish(event, fold)
        elif isinstance(event, EvaluationFinished) and _last(fold) is not evaluated:
            held.evaluate(event, fold)
    return held.evaluations


def _last(fold: Fold) -> object:
    """The newest reading: another object after each evaluation that counted."""
    return fold.validation


def reached(of: Sequence[Evaluation], target: float) -> Reached | None:
    """When the loss first fell to `target`; None if it never did."""
    after = START
    for one in of:
        if one.loss <= target:
            return Reached(one.loss, after, one.at)
        after = one.at
    return None
