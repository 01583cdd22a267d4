"""The tables of a report for people: restarts, their parts, and faults."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.recovery import Stage
from harness.report.model import Comeback, Report
from harness.report.spread import Spread, counted, seconds

LISTED = 12
"""How many restarts and faults a table shows; the rest are in `--json`."""


def spreads(report: Report) -> Table:
    """How long coming back took, and each part of it."""
    table = Table.grid(padding=(0, 2))
    table.add_column()
    for _ in range(4):
        table.add_column(justify="right")
    heads = ("seconds", "count", "median", "p90", "max")
    table.add_row(*(Text(head, style="dim") for head in heads))
    rows = [("last finished step → next first one", report.durations)]
    rows += [("  of that, " + stage.value, report.stage(stage)) for stage in Stage]
    rows += [("fault injected → first finished step", report.durations_since_fault)]
    for label, spread in rows:
        if spread.count:
            table.add_row(label, *_figures(spread))
    return table


def _figures(spread: Spread) -> list[str]:
    figures = (spread.median_ns, spread.p90_ns, spread.max_ns)
    return [str(spread.count), *("" if ns is None else f"{seconds(ns):.3f}" for ns in figures)]


def comebacks(report: Report) -> RenderableType:
    """Each failure and the way back from it, the newest last."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    for head in ("#", "attempt", "back after", "resumed", "lost"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("what happened", overflow="ellipsis", no_wrap=True)
    for one in report.comebacks[-LISTED:]:
        resumed = "" if one.resumed_step is None else f"step {one.resumed_step}"
        lost = f"{counted(one.lost_steps, 'step')}"
        table.add_row(str(one.number), str(one.attempt), _back(one), resumed, lost, _happened(one))
    return _cut(table, len(report.comebacks))


def _back(one: Comeback) -> str:
    if one.duration_ns is not None:
        return f"{seconds(one.duration_ns):.3f} s"
    return "burnt" if one.burnt else "not yet"


def _happened(one: Comeback) -> str:
    who = "" if one.rank is None else f"rank {one.rank}: "
    fault = f" (fault {', '.join(one.faults)})" if one.faults else ""
    return f"{who}{one.reason or one.cause}{fault}"


def faults(report: Report) -> RenderableType:
    """Each fault of the tape and what became of it."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    for head in ("at", "id", "kind", "target"):
        table.add_column(head, no_wrap=True, justify="right" if head == "at" else "left")
    table.add_column("what became of it", overflow="ellipsis", no_wrap=True)
    for one in report.faults[-LISTED:]:
        at = "" if one.at_ns is None else f"{seconds(one.at_ns):.2f} s"
        table.add_row(at, one.id, one.kind, one.target, one.became)
    return _cut(table, len(report.faults))


def _cut(table: Table, count: int) -> RenderableType:
    if count <= LISTED:
        return table
    return Group(table, Text(f"… the last {LISTED} of {count}; all of them: --json", style="dim"))
