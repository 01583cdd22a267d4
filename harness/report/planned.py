"""The faults that a run was to meet, as its tape says; a report names even those that never came.

The tape is the injector's to judge. What cannot be read of it here is left out.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.sightings import Scope, scope_of


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
    return list(_faults(_lines(tape)))


def kinds(tape: Path) -> frozenset[tuple[str, Scope]]:
    """Every kind of fault on the tape, with what it acts on; as often as one likes, for a tape stays as it is."""
    try:
        found = tape.stat()
    except OSError:
        return frozenset()
    return _kinds(tape, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=8)
def _kinds(tape: Path, _changed_ns: int, _bytes: int) -> frozenset[tuple[str, Scope]]:
    lines = _lines(tape)
    found = {(fault.kind, scope_of(fault.target)) for fault in _faults(lines)}
    found |= {(f"store.{kind}", Scope.STORAGE) for kind in _rules(lines)}
    # JSON can say half of a character, and a scrape cannot.
    return frozenset((kind.encode(errors="replace").decode(), scope) for kind, scope in found)


def _lines(tape: Path) -> list[str]:
    try:
        return tape.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _rules(lines: list[str]) -> Iterator[str]:
    """The kinds of those that spoil calls to the storage: they fall due at no time."""
    for line in lines:
        try:
            found: dict[str, Any] = json.loads(line)
            if "at_s" not in found:
                yield str(found["kind"])
        except (ValueError, TypeError, KeyError, RecursionError):
            continue


def _faults(lines: list[str]) -> Iterator[Planned]:
    for line in lines:
        try:
            found: dict[str, Any] = json.loads(line)
            yield Planned(
                str(found["id"]), str(found["kind"]), str(found["target"]), float(found["at_s"])
            )
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            continue  # the header, or a line that was cut
