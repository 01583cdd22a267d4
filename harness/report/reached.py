"""Steps, tokens and time to a target loss, of several runs side by side, for people and for programs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from harness.planning.words import duration, table
from harness.quantities import losses
from harness.report.spread import counted
from harness.targets import Evaluation, Mark, Reached, reached

SCHEMA = 1
Runs = Mapping[str, Sequence[Evaluation]]


def targets(text: str) -> list[float]:
    """What `--loss` asks for, the highest first. Raises `ValueError`."""
    try:
        return losses(text)
    except ValueError as error:
        raise ValueError(f"--loss {error}") from None


def told(runs: Runs, losses: Sequence[float]) -> str:
    """A table for each target; each run after the first with its ratio to the first."""
    blocks = [list(_target(runs, loss)) for loss in losses]
    return "\n".join([*_head(runs), *(line for block in blocks for line in ["", *block])]) + "\n"


def _head(runs: Runs) -> Iterator[str]:
    yield "from..to: between the last evaluation above the target and the first at or below it"
    for name, held in runs.items():
        often = _often(sorted({other.at.step - one.at.step for one, other in pairwise(held)}))
        lowest = min((one.loss for one in held if not math.isnan(one.loss)), default=math.nan)
        yield f"{name}: {counted(len(held), 'evaluation')}, {often}, down to {lowest:.4f}"


def _often(gaps: Sequence[int]) -> str:
    if not gaps:
        return "once"
    return f"every {gaps[0]} steps" if len(gaps) == 1 else f"every {gaps[0]} to {gaps[-1]} steps"


def _target(runs: Runs, loss: float) -> Iterator[str]:
    found = {name: reached(held, loss) for name, held in runs.items()}
    rows = [[f"loss ≤ {loss:g}", "it was", "steps", "tokens", "wall", "kept work"]]
    rows += [_row(name, one) for name, one in found.items()]
    yield from table(rows)
    first, *others = found.items()
    for name, one in others:
        if one is not None and first[1] is not None:
            yield f"{name} / {first[0]}: {_ratios(one.by, first[1].by)}"


def _row(name: str, one: Reached | None) -> list[str]:
    if one is None:
        return [name, "not reached", "–", "–", "–", "–"]
    after, by = one.after, one.by
    return [
        name,
        f"{one.loss:.4f}",
        f"{after.step:,}..{by.step:,}",
        f"{after.tokens:,}..{by.tokens:,}",
        f"{duration(after.wall_s)}..{duration(by.wall_s)}",
        f"{duration(after.kept_s)}..{duration(by.kept_s)}",
    ]


def _ratios(one: Mark, first: Mark) -> str:
    pairs = {
        "steps": (one.step, first.step),
        "tokens": (one.tokens, first.tokens),
        "wall": (one.wall_s, first.wall_s),
        "kept work": (one.kept_s, first.kept_s),
    }
    return ", ".join(f"{name} × {a / b:.2f}" for name, (a, b) in pairs.items() if b)


def to_json(runs: Runs, losses: Sequence[float]) -> dict[str, Any]:
    """The same, with every figure; what was not reached is null."""
    return {
        "schema": SCHEMA,
        "runs": [
            {
                "run": name,
                "evaluations": len(held),
                "targets": [
                    {"loss": loss, "reached": None if found is None else asdict(found)}
                    for loss in losses
                    for found in (reached(held, loss),)
                ],
            }
            for name, held in runs.items()
        ],
    }
