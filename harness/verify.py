"""Decides whether two runs went the same way, from their logs alone.

What is compared is what was kept: where training resumed behind a step, the step's last telling
counts. Two runs are exact if nothing that they digested differs and both ended at the same step.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from pathlib import Path

import xxhash

from harness.events import Entry, StateDigested, StepFinished, TrainingResumed, rank_of
from harness.journal import read
from harness.rundir import RunDir


class Judgement(StrEnum):
    """What can be said of two runs."""

    EXACT = "exact"
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    """Too little was digested to tell."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether two runs went the same way and, if not, where they first differ."""

    judgement: Judgement
    detail: str
    """One line for people."""
    compared_steps: int = 0
    """Steps after which both digested their state."""
    first_step: int | None = None
    component: str | None = None
    """The first that differs, causes before effects; None where the runs differ in something else."""
    rank: int | None = None

    @property
    def exact(self) -> bool:
        """Equal, bit for bit, in everything that both digested."""
        return self.judgement is Judgement.EXACT


def verify(run: Path, twin: Path) -> Verdict:
    """Compare the logs of two run directories."""
    return compare(read(RunDir.at(run)), read(RunDir.at(twin)))


def compare(run: Iterable[Entry], twin: Iterable[Entry]) -> Verdict:
    """Compare two logs, each with the entries of a writer in order."""
    mine, other = _kept(run), _kept(twin)
    common = sorted(mine.digests.keys() & other.digests.keys())
    differences = [*_in_steps(mine, other), *_in_states(mine, other, common)]
    if differences:
        return _different(differences, len(common))
    if mine.last_step != other.last_step:
        ends = f"one run ended after step {mine.last_step}, the other after {other.last_step}"
        return Verdict(Judgement.DIFFERENT, ends, len(common))
    if mine.last_step == 0 or mine.last_step not in common:
        return Verdict(
            Judgement.UNKNOWN,
            f"the state after the last step, {mine.last_step}, was not digested by both runs: let"
            " both finish, with HARNESS_DIGEST_EVERY_STEPS=1 to compare every step",
            len(common),
        )
    same = f"equal in every component after {len(common)} step(s), the last of them {common[-1]}"
    return Verdict(Judgement.EXACT, same, len(common))


def final_digest(entries: Iterable[Entry]) -> str | None:
    """One digest of the state of all ranks after the last step kept; None if it was not told."""
    kept = _kept(entries)
    told = kept.digests.get(kept.last_step)
    if told is None or kept.last_step == 0:
        return None
    lines = [
        f"{rank} {name} {value}"
        for rank, components in sorted(told.by_rank.items())
        for name, value in sorted(components.items())
        if name not in _OF_THE_STEP
    ]
    return xxhash.xxh3_128_hexdigest("\n".join(lines).encode())


# ── what was kept ───────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Told:
    """Digests of components after one step, by rank, as one attempt told them."""

    attempt: int
    by_rank: dict[int, Mapping[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class _Kept:
    last_step: int = 0
    steps: dict[int, StepFinished] = field(default_factory=dict)
    losses: dict[int, str] = field(default_factory=dict)
    digests: dict[int, _Told] = field(default_factory=dict)

    def rewind(self, step: int) -> None:
        self.last_step = step
        self.steps = {n: told for n, told in self.steps.items() if n <= step}
        self.losses = {n: loss for n, loss in self.losses.items() if n <= step}
        self.digests = {n: told for n, told in self.digests.items() if n <= step}


def _kept(entries: Iterable[Entry]) -> _Kept:
    """Attempt by attempt: what an older one still writes cannot undo what a newer one did."""
    kept = _Kept()
    ordered = sorted(entries, key=lambda entry: entry.attempt)
    for _, group in groupby(ordered, key=lambda entry: entry.attempt):
        attempt = list(group)
        for entry in attempt:
            if isinstance(entry.event, TrainingResumed):
                kept.rewind(entry.event.step)
        for entry in attempt:
            _keep(kept, entry)
    return kept


def _keep(kept: _Kept, entry: Entry) -> None:
    event = entry.event
    if isinstance(event, StepFinished):
        kept.last_step = max(kept.last_step, event.step)
        kept.steps[event.step] = event
        if event.loss is not None and event.loss_step is not None:
            kept.losses[event.loss_step] = event.loss.hex()  # NaN equals NaN, 0.0 is not -0.0
    elif isinstance(event, StateDigested) and (rank := rank_of(entry.writer)) is not None:
        told = kept.digests.get(event.step)
        if told is None or told.attempt < entry.attempt:
            told = kept.digests[event.step] = _Told(entry.attempt)
        told.by_rank[rank] = event.components


# ── differences ─────────────────────────────────────────────────────────────────────────────────

_OF_THE_STEP = ("samples", "loss")
"""Components that belong to a step and not to the state: absent where a restored state is told."""


@dataclass(frozen=True, slots=True)
class _Difference:
    step: int
    place: int
    """Where its component stands in the order from causes to effects."""
    component: str | None
    rank: int | None
    text: str


def _in_steps(mine: _Kept, other: _Kept) -> Iterator[_Difference]:
    """Samples and losses, as rank 0 told them."""
    for step in mine.steps.keys() & other.steps.keys():
        if _samples(mine.steps[step]) != _samples(other.steps[step]):
            yield _Difference(step, _place("samples", 0), "samples", 0, "samples")
    for step in mine.losses.keys() & other.losses.keys():
        if mine.losses[step] != other.losses[step]:
            yield _Difference(step, _place("loss", 0), "loss", 0, "loss")


def _samples(step: StepFinished) -> tuple[int, int, str]:
    return step.samples_start, step.samples_end, step.samples_digest


def _in_states(mine: _Kept, other: _Kept, steps: Iterable[int]) -> Iterator[_Difference]:
    for step in steps:
        ranks, others = mine.digests[step].by_rank, other.digests[step].by_rank
        if ranks.keys() != others.keys():
            told = f"ranks {sorted(ranks)} in one run and {sorted(others)} in the other"
            yield _Difference(step, -1, None, None, f"{told} told their state")
        for rank in sorted(ranks.keys() & others.keys()):
            yield from _in_rank(step, rank, ranks[rank], others[rank])


def _in_rank(
    step: int, rank: int, mine: Mapping[str, str], other: Mapping[str, str]
) -> Iterator[_Difference]:
    for order, name in enumerate([*mine, *(name for name in other if name not in mine)]):
        one_sided = name not in mine or name not in other
        if one_sided and name in _OF_THE_STEP:
            continue
        if mine.get(name) != other.get(name):
            yield _Difference(step, _place(name, order), name, rank, name)


def _place(component: str, order: int) -> int:
    """Random draws first, for they decide gradients; what a step shows of the state last."""
    return {"rng": 0, "samples": 1_000_000, "loss": 1_000_001}.get(component, 1 + order)


def _different(differences: Iterable[_Difference], compared_steps: int) -> Verdict:
    ordered = sorted(differences, key=lambda one: (one.step, one.place, one.rank or 0))
    first = ordered[0]
    others = dict.fromkeys(one.text for one in ordered if one.step == first.step)
    rest = [text for text in others if text != first.text]
    where = first.text if first.rank is None else f"{first.text} of rank {first.rank} differs"
    detail = f"after step {first.step}: {where}" + (f"; so do {', '.join(rest)}" if rest else "")
    return Verdict(
        Judgement.DIFFERENT, detail, compared_steps, first.step, first.component, first.rank
    )
