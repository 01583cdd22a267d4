"""Failures that were seen somewhere: instants in seconds since the start of a trace, from a file.

Two forms: CSV with a column of instants whose name says their unit (`at_s`, `at_min`, `at_h`,
`at_d`), and the JSON of InfiniteHBD (days; `fault_start` and `fault_end` of each node). Faults of
one instant are one failure of the job.
"""

import csv
import io
import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.quantities import UNITS_S, checked
from harness.simulation.laws import Observed

COLUMNS = {f"at_{unit}": UNITS_S[unit] for unit in ("s", "min", "h", "d")}


def instants_s(path: Path) -> list[float]:
    """The instants of all failures in the trace, in order. Raises `ValueError` if it is none."""
    try:
        text = path.read_text("utf-8")
        found = (
            _of_json(json.loads(text)) if text.lstrip().startswith(("[", "{")) else _of_csv(text)
        )
        instants = sorted({checked("instant", instant_s, at_least=0) for instant_s in found})
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        told = f"an entry has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} is no trace of failures: {told}") from error
    if not instants:
        raise ValueError(f"{path} is empty: there is no failure in it")
    return instants


def _of_json(entries: Any) -> list[float]:
    if not isinstance(entries, list):
        raise TypeError("it is not a list of faults")
    starts = [entry for entry in entries if entry["event_type"] == "fault_start"]
    return [entry["event_time"] * UNITS_S["d"] for entry in starts]


def _of_csv(text: str) -> list[float]:
    rows = csv.DictReader(io.StringIO(text))
    name = next((name for name in rows.fieldnames or () if name in COLUMNS), None)
    if name is None:
        if not text.strip():
            return []
        raise ValueError(f"it has no column {' or '.join(COLUMNS)}")
    return [float(row[name]) * COLUMNS[name] for row in rows]


def gaps(instants: Sequence[float], mean_s: float) -> Observed:
    """The law of the gaps between `instants`, stretched to another mean; their order is not kept.

    Raises `ValueError` where there is none.
    """
    seen = [later - earlier for earlier, later in pairwise(instants)]
    if not seen:
        raise ValueError("a trace with one failure has no gap to draw from: give a longer one")
    stretch = mean_s / (math.fsum(seen) / len(seen))
    return Observed(sorted(gap * stretch for gap in seen))
