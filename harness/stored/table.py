"""A listing of checkpoints on a screen."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.stored.listing import Line, Listing, Row

_STEPS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def rendered(listing: Listing) -> RenderableType:
    """The table, and how the attempts descend from one another."""
    head = Text(f"run {listing.run_id}, checkpoints in {listing.root}")
    if not listing.rows:
        return Group(head, Text("no checkpoints"))
    return Group(head, "", _table(listing), "", *(_descent(line) for line in listing.lineage))


def _table(listing: Listing) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    for name in ("step", "attempt", "size", "age"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("verified", no_wrap=True)
    table.add_column("why", overflow="fold")
    for row in listing.rows:
        table.add_row(
            str(row.step),
            str(row.attempt),
            size(row.size_bytes),
            "" if row.age_s is None else age(row.age_s),
            row.state.value,
            _verified(row),
            row.damage or row.reason,
        )
    return table


def _verified(row: Row) -> str:
    return "" if row.verified is None else ("yes" if row.verified else "damaged")


def _descent(line: Line) -> Text:
    came = (
        "began from nothing"
        if line.parent is None
        else f"descends from attempt {line.parent} at step {line.step}"
    )
    aside = "" if line.on_chain else "; it is not in the history of the newest one"
    return Text(f"attempt {line.attempt} {came}{aside}")


def size(size_bytes: int) -> str:
    """`1.5 GB`."""
    return _in_units(float(size_bytes), _SIZES, "0 B")


def age(age_s: float) -> str:
    """`3.2 h`."""
    return _in_units(age_s, _STEPS, "0 s")


def _in_units(value: float, units: tuple[tuple[float, str], ...], none: str) -> str:
    for unit, name in units:
        if value >= unit:
            scaled = value / unit
            return (
                f"{scaled:.0f} {name}" if unit == 1.0 or scaled >= 100 else f"{scaled:.1f} {name}"
            )
    return none
