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
    strangers = sorted(one for one in wanted if not any(_is(row, one) for row in listing.rows))
    if strangers:
        there = ", ".join(dict.fromkeys(str(row.step) for row in listing.rows)) or "none"
        return Removal((), f"no checkpoint of step {', '.join(strangers)}; there are: {there}")
    rows = [row for row in listing.rows if any(_is(row, one) for one in wanted)]
    good = [row for row in listing.rows if row.state is State.COMMITTED and row.name in sound]
    if good and all(row in rows for row in good):
        last = good[-1].step
        return Removal(rows, f"step {last} is the last good checkpoint of the run")
    return Removal(rows)


def _is(row: Row, wanted: str) -> bool:
    return wanted == row.name or (wanted.isdecimal() and int(wanted) == row.step)
