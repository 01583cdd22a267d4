"""Whether the simulator does what a file of reference outputs says, to the last digit that can be asked.

Counts must be equal. Floats may differ by 1e-12 of their value in the loop, for two correct
logarithms differ in the last bit, and by 1e-9 in the sweep, which adds up in another order.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.simulation.draws import mulberry32
from harness.simulation.failures import Renewal
from harness.simulation.laws import Exponential
from harness.simulation.loop import Costs, Kind, Walk, walk

LOOP_TOLERANCE = 1e-12
SWEEP_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Row:
    """One run of the file."""

    costs: Costs
    mtbf_s: float
    seed: int
    told: Mapping[str, Any]
    """What the file says came of it."""

    @property
    def name(self) -> str:
        """The run in words."""
        return f"seed {self.seed}, interval {self.costs.interval_s:g} s"


@dataclass(frozen=True, slots=True)
class Vectors:
    """A file of reference outputs."""

    rows: Sequence[Row]
    streams: Mapping[int, Sequence[float]]
    """First numbers of the generator, by seed."""


def read(path: Path) -> Vectors:
    """The vectors in `path`. Raises `ValueError` if it holds none."""
    try:
        table = json.loads(path.read_text("utf-8"))
        shared = table.get("params", {})
        rows = [_row({**shared, **told.get("params", {})}, told) for told in table["results"]]
        streams = {int(seed): told for seed, told in table.get("mulberry32_first5", {}).items()}
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        told = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} holds no vectors of the simulator: {told}") from error
    if not rows:
        raise ValueError(f"{path} holds no vectors of the simulator: its results are empty")
    return Vectors(rows, streams)


def _row(params: Mapping[str, float], told: Mapping[str, Any]) -> Row:
    costs = Costs(told["tau_s"], params["delta"], params["restart"], params["horizon"])
    mulberry32(told["seed"])
    Exponential(params["mtbf"])
    return Row(costs, params["mtbf"], told["seed"], {"failures": told["failures"], **told})


def simulated(row: Row) -> dict[str, Any]:
    """What the loop says of the row, under the names that the file has for it."""
    next_failure = Renewal(Exponential(row.mtbf_s)).begin(mulberry32(row.seed))
    return _told(walk(row.costs, lambda now_s: next_failure(now_s).at_s), row.costs.horizon_s)


def _told(of: Walk, horizon_s: float) -> dict[str, Any]:
    totals, clipped = of.totals_s(), of.totals_s(until_s=horizon_s)
    return {
        "failures": len(of.failures_s),
        "segments": len(of.stretches),
        "count": {kind.value: count for kind, count in of.counts().items()},
        "end_s": of.end_s,
        "total_s": {kind.value: s for kind, s in totals.items()},
        "clipped_total_s": {kind.value: s for kind, s in clipped.items()},
        "goodput": totals[Kind.WORK] / of.end_s,
        "goodput_clipped": clipped[Kind.WORK] / horizon_s,
        "goodput_work_over_horizon": totals[Kind.WORK] / horizon_s,
        "first5_failures_s": of.failures_s[:5],
    }


def differences(
    told: Mapping[str, Any], ours: Mapping[str, Any], tolerance: float
) -> Iterator[str]:
    """What differs among the names that both know: whole numbers at all, floats beyond `tolerance`."""
    for name, value in told.items():
        if name in ours and not _equal(value, ours[name], tolerance):
            yield f"{name} is {ours[name]!r}, the file says {value!r}"


def _equal(told: Any, ours: Any, tolerance: float) -> bool:
    match ours:
        case dict():
            return isinstance(told, dict) and all(
                _equal(told.get(key), value, tolerance) for key, value in ours.items()
            )
        case list():
            return isinstance(told, list) and [True] * len(ours) == [
                _equal(one, other, tolerance) for one, other in zip(told, ours, strict=False)
            ]
        case float():
            return isinstance(told, int | float) and math.isclose(
                told, ours, rel_tol=tolerance, abs_tol=0
            )
        case _:
            return bool(told == ours)


def stream_agrees(seed: int, told: Sequence[float]) -> bool:
    """Whether the generator begins as the file says, to the last bit."""
    draw = mulberry32(seed)
    return [draw() for _ in told] == list(told)
