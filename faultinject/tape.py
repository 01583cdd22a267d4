"""Which faults will happen, and when: a plan and a seed become a tape, before anything runs.

Every draw is a function of (seed, purpose, index) and of nothing else. No stream has a position, so
another kind, another target or another run of the injector can shift nobody's draws.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import assert_never

from faultinject.draws import share
from faultinject.rules import Rule

LONGEST_S = 1e9
"""Longest time that a plan may name, 31 years: sums of such times stay exact enough."""
MOST_FAULTS = 100_000
_RANK = re.compile("[0-9]{1,9}")


# ── what a plan says ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Exponential:
    """Faults without memory: gaps are exponential, of mean `mtbf_s`, over the job as a whole."""

    mtbf_s: float


@dataclass(frozen=True, slots=True)
class Uniform:
    """Gaps between `min_s` and `max_s`, all equally likely."""

    min_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class Instants:
    """Faults at these instants."""

    at_s: tuple[float, ...]


Arrival = Exponential | Uniform | Instants


@dataclass(frozen=True, slots=True)
class AnyRank:
    """A rank drawn for each fault, all equally likely."""

    def __str__(self) -> str:
        return "any rank"


@dataclass(frozen=True, slots=True)
class Rank:
    """Always this one."""

    number: int

    def __str__(self) -> str:
        return f"rank {self.number}"


Target = AnyRank | Rank


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the faults that may happen at an instant."""

    kind: str
    weight: float = 1.0
    target: Target = AnyRank()


@dataclass(frozen=True, slots=True)
class Plan:
    """What shall go wrong, how often and with whom."""

    arrival: Arrival
    choices: tuple[Choice, ...]
    max_faults: int
    seed: int = 0
    start_delay_s: float = 0.0
    """Added to every instant."""
    storage: tuple[Rule, ...] = ()
    """How the storage misbehaves, if the run's checkpoints are behind `chaos::`."""


def target(text: str) -> Target:
    """What `text` aims at. Raises `ValueError` for anything but `any rank` and `rank N`."""
    words = text.split()
    if words == ["any", "rank"]:
        return AnyRank()
    if len(words) == 2 and words[0] == "rank" and _RANK.fullmatch(words[1]):
        return Rank(int(words[1]))
    raise ValueError(f"unknown target {text[:40]!r}; known: any rank, rank N (N from 0)")


def digest(plan: Plan) -> str:
    """Name of the plan's values: equal for equal plans, whatever their files look like."""
    values = asdict(plan) | {
        "arrival": [type(plan.arrival).__name__, asdict(plan.arrival)],
        "choices": [[choice.kind, choice.weight, str(choice.target)] for choice in plan.choices],
    }
    storage = values.pop("storage")
    if storage:
        values["storage"] = [str(rule) for rule in plan.storage]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


# ── what a tape says ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault to come."""

    id: str
    at_s: float
    """Seconds after the run's first committed save, while a launcher lives; whole microseconds."""
    kind: str
    target: Rank


@dataclass(frozen=True, slots=True)
class Tape:
    """All faults to come in a run, in order."""

    seed: int
    plan: str
    """The plan's digest."""
    world_size: int
    faults: tuple[Fault, ...]
    storage: tuple[Rule, ...] = ()


def counted(tape: Tape) -> str:
    """How much a tape holds, in words."""
    rules = f" and {len(tape.storage)} rules for storage" if tape.storage else ""
    return f"{len(tape.faults)} faults{rules} for {tape.world_size} ranks"


def compile(plan: Plan, world_size: int) -> Tape:  # noqa: A001 - the word for it; no builtin is meant here
    """The tape of `plan` for a job of `world_size` ranks: the same one each time.

    Raises `ValueError`, with a line for each, where the plan aims at ranks that the job has not.
    """
    ranks = [choice.target for choice in plan.choices if isinstance(choice.target, Rank)]
    mistakes = [
        f"target '{rank}' does not exist at {world_size} ranks; known: any rank,"
        f" rank 0 to rank {world_size - 1}"
        for rank in ranks
        if rank.number >= world_size
    ]
    if mistakes:
        raise ValueError("\n".join(mistakes))
    faults = tuple(
        Fault(f"f{index + 1}", at_s, *_drawn(plan, index, world_size))
        for index, at_s in enumerate(_instants(plan))
    )
    return Tape(plan.seed, digest(plan), world_size, faults, plan.storage)


def _instants(plan: Plan) -> list[float]:
    """When each fault falls due."""
    if isinstance(plan.arrival, Instants):
        instants = sorted(plan.arrival.at_s)[: plan.max_faults]
        return [round(plan.start_delay_s + at_s, 6) for at_s in instants]
    instants, at_s = [], plan.start_delay_s
    for gap_s in _gaps(plan.arrival, plan.seed, plan.max_faults):
        at_s += gap_s
        instants.append(round(at_s, 6))
    return instants


def _gaps(arrival: Exponential | Uniform, seed: int, count: int) -> Iterator[float]:
    for index in range(count):
        drawn = share(seed, "gap", index)
        match arrival:
            case Exponential(mtbf_s):
                yield -mtbf_s * math.log1p(-drawn)
            case Uniform(min_s, max_s):
                yield min_s + (max_s - min_s) * drawn
            case _:
                assert_never(arrival)


def _drawn(plan: Plan, index: int, world_size: int) -> tuple[str, Rank]:
    """Kind and target of fault number `index`.

    Each choice runs an exponential race at its weight and the first one home happens, so a choice
    wins in proportion to its weight, and a new one takes some instants over without touching who
    wins the others.
    """

    def finish(choice: Choice) -> float:
        drawn = share(plan.seed, f"choice {choice.kind} {choice.target}", index)
        return -math.log1p(-drawn) / choice.weight

    choice = min(plan.choices, key=finish)
    if isinstance(choice.target, Rank):
        return choice.kind, choice.target
    drawn = share(plan.seed, f"target {choice.kind} {choice.target}", index)
    return choice.kind, Rank(int(drawn * world_size))
