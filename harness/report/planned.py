"""The faults that a run was to meet, as its tape says; a report names even those that never came.

The tape is the injector's to judge. What cannot be read of it here is left out.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault of the tape."""

    id: str
    kind: str
    target: str
    tape_s: float
    """When it falls due, in tape time."""


def planned(tape: Path) -> list[Planned]:
    """The faults on the tape, in order; none where there is no tape."""
    try:
        lines = tape.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return list(_faults(lines))


def _faults(lines: list[str]) -> Iterator[Planned]:
    for line in lines:
        try:
            found: dict[str, Any] = json.loads(line)
            yield Planned(
                str(found["id"]), str(found["kind"]), str(found["target"]), float(found["at_s"])
            )
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            continue  # the header, or a line that was cut
