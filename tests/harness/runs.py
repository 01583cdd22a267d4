"""Logs to test with: written by hand in seconds, or walked at random along the table of phases."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from harness.events import (
    AttemptStarted,
    Cause,
    CheckpointDeleted,
    DrainRequested,
    Entry,
    EvaluationFinished,
    EvaluationStarted,
    Event,
    FailureDetected,
    FaultConfirmed,
    FaultInjected,
    Outcome,
    RanksStopped,
    RestoreStarted,
    RunFinished,
    RunStarted,
    SaveCommitted,
    SaveFailed,
    SaveStarted,
    SaveUnblocked,
    StepFinished,
    StepTimed,
    Tier,
    TrainingFinished,
    TrainingResumed,
    Unknown,
)
from harness.fold import Fold
from harness.phases import NEXT_PHASE, Phase

S = 1_000_000_000


def log(*lines: tuple[float, int, Event]) -> list[Entry]:
    """Entries from (second, attempt, event), in the order given."""
    return [
        Entry(round(at_s * S), attempt, sequence, event, "rank-0")
        for sequence, (at_s, attempt, event) in enumerate(lines)
    ]


def step(number: int, tokens: int = 10, loss: float | None = None) -> StepFinished:
    return StepFinished(number, 4 * number - 4, 4 * number, "", tokens, loss, number)


def start(at_s: float = 0.0) -> list[tuple[float, int, Event]]:
    """Eight seconds until the first step is done: 3 s start-up, 2 s restore, 3 s warm-up."""
    return [
        (at_s, 0, RunStarted("run", 2)),
        (at_s + 1, 1, AttemptStarted(2)),
        (at_s + 3, 1, RestoreStarted()),
        (at_s + 5, 1, TrainingResumed(0, None)),
        (at_s + 8, 1, step(1)),
    ]


@dataclass
class FakeClock:
    """Stands still until it is told to move."""

    monotonic: int = 1_000 * S
    wall: int = 1_700_000_000 * S

    def monotonic_ns(self) -> int:
        return self.monotonic

    def wall_ns(self) -> int:
        return self.wall

    def advance(self, by_s: float) -> None:
        self.monotonic += round(by_s * S)
        self.wall += round(by_s * S)


# ── walks ───────────────────────────────────────────────────────────────────────────────────────


_ONWARD: Mapping[Phase, type[Event]] = {
    Phase.DOWN: RunStarted,
    Phase.RESTORE: TrainingResumed,
    Phase.WARMUP: StepFinished,
    Phase.WORK: StepFinished,
    Phase.EVALUATION: EvaluationFinished,
    Phase.SAVE_STALL: SaveUnblocked,
    Phase.DRAIN: RunFinished,
    Phase.FINISHED: RunStarted,
}


@dataclass
class _Walk:
    """Goes on from what has happened to something that the table says may happen next."""

    chance: random.Random
    fold: Fold = field(default_factory=Fold)
    at_ns: int = 5 * S
    faults: int = 0

    def choose(self) -> type[Event]:
        phase, chance = self.fold.phase, self.chance.random()
        alive = self.fold.attempt > self.fold.dead_attempt
        if phase is Phase.DOWN or chance < 0.55:
            return _ONWARD.get(phase, RestoreStarted if alive else AttemptStarted)
        if chance < 0.8:
            return self.chance.choice(_PHASELESS)
        row = sorted(NEXT_PHASE[phase], key=lambda kind: kind.__name__)
        return self.chance.choice(row if alive else [*row, StepFinished, FailureDetected])

    def event(self, kind: type[Event], number: int) -> tuple[int, Event]:
        """The attempt and the event."""
        fold = self.fold
        attempt = fold.attempt + (kind is AttemptStarted)
        if kind is StepFinished:
            late = attempt <= fold.dead_attempt
            return attempt, step(fold.step + 1 + (number % 3 if late else 0), loss=float(number))
        if kind is FaultInjected:
            self.faults += 1
        return attempt, _MADE[kind](fold.step, number, f"f{self.faults}")


_MADE: Mapping[type[Event], Callable[[int, int, str], Event]] = {
    RunStarted: lambda _step, _number, _fault: RunStarted("run", 2),
    AttemptStarted: lambda _step, _number, _fault: AttemptStarted(2),
    FailureDetected: lambda _step, n, _fault: FailureDetected(n % 2, Cause.SIGNAL, "SIGKILL"),
    DrainRequested: lambda _step, _number, _fault: DrainRequested(30.0),
    RunFinished: lambda _step, number, _fault: RunFinished(list(Outcome)[number % 4]),
    RestoreStarted: lambda _step, _number, _fault: RestoreStarted(),
    TrainingResumed: lambda last, n, _fault: TrainingResumed(n % (last + 1), Tier.STORAGE, 1),
    EvaluationStarted: lambda last, _number, _fault: EvaluationStarted(last),
    EvaluationFinished: lambda last, number, _fault: EvaluationFinished(last, float(number)),
    SaveStarted: lambda last, n, _fault: SaveStarted(last, Tier.STORAGE, rest=n % 3 == 0),
    SaveUnblocked: lambda last, _number, _fault: SaveUnblocked(last, Tier.STORAGE),
    TrainingFinished: lambda last, _number, _fault: TrainingFinished(last),
    SaveCommitted: lambda last, n, _fault: SaveCommitted(n % (last + 1), Tier.STORAGE, n),
    SaveFailed: lambda last, n, _fault: SaveFailed(n % (last + 1), Tier.STORAGE, "full"),
    CheckpointDeleted: lambda last, n, _fault: CheckpointDeleted(n % (last + 1), n),
    FaultInjected: lambda _step, _number, fault: FaultInjected(fault, "kill", "rank 1"),
    FaultConfirmed: lambda _step, _number, fault: FaultConfirmed(fault),
    StepTimed: lambda last, number, _fault: StepTimed(last, number, 2),
    RanksStopped: lambda _step, _number, _fault: RanksStopped(),
    Unknown: lambda _step, number, _fault: Unknown("TensorEvaporated", {"number": number}),
}
_PHASELESS: Sequence[type[Event]] = (  # events that move nothing
    SaveCommitted,
    SaveFailed,
    CheckpointDeleted,
    FaultInjected,
    FaultConfirmed,
    StepTimed,
    RanksStopped,
    Unknown,
)


def walk(seed: int, length: int) -> list[Entry]:
    """A log in which everything that the table allows may happen, late steps of the dead included."""
    going = _Walk(random.Random(seed))
    entries: list[Entry] = []
    for sequence in range(length):
        number = going.chance.randrange(50)
        attempt, event = going.event(going.choose(), number)
        going.at_ns += going.chance.choice([0, 1, 7, S // 3, 2 * S + 1])
        entry = Entry(going.at_ns, attempt, sequence, event, f"rank-{number % 2}")
        going.fold.feed(entry)
        entries.append(entry)
    return entries


def walks(longest: int = 200) -> st.SearchStrategy[list[Entry]]:
    """Such logs, of any length."""
    return st.builds(walk, st.integers(0, 2**32), st.integers(1, longest))


def prefixes(entries: Sequence[Entry]) -> Iterator[Fold]:
    """The fold after each entry: one object, seen again and again."""
    fold = Fold()
    for entry in entries:
        fold.feed(entry)
        yield fold
