"""Which checkpoints may be removed by hand (pure)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from harness.stored.listing import Listing, Row, State


@dataclass(frozen=True, slots=True)
class Removal:
    """What is to go, and why it may not."""

    rows: Sequence[Row]
    refusal: str = ""


def chosen(listing: Listing, wanted: Collection[str], sound: Collection[str]) -> Removal:
    """The rows that `wanted` names, by step or by name; `sound` are the names of whole ones.

    Refused for what is not there, and where no good checkpoint of the run would be left.
    """
    strangers = sorted(
        one for one in wanted if not any(is_named(row.name, row.step, one) for row in listing.rows)
    )
    if strangers:
        there = ", ".join(dict.fromkeys(str(row.step) for row in listing.rows)) or "none"
        return Removal((), f"no checkpoint of step {', '.join(strangers)}; there are: {there}")
    rows = [row for row in listing.rows if any(is_named(row.name, row.step, one) for one in wanted)]
    good = [row for row in listing.rows if row.state is State.COMMITTED and row.name in sound]
    if good and all(row in rows for row in good):
        last = good[-1].step
        return Removal(rows, f"step {last} is the last good checkpoint of the run")
    return Removal(rows)


def is_named(name: str, step: int, wanted: str) -> bool:
    """True if `wanted`, as people type it, is the name of a save, or its step."""
    return wanted == name or (wanted.lstrip("0") or wanted[:1]) == str(step)
