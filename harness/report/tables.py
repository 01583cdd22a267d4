"""The tables of a report for people: restarts, where their time goes, and faults."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.recovery import Stage
from harness.report.model import Report
from harness.report.records import Comeback
from harness.report.spread import Spread, counted, seconds

_BLOCKS = " ▏▎▍▌▋▊▉█"
BAR_WIDTH, BESIDE_BARS = 24, 63
ENDS = {
    Stage.DETECT: "detected",
    Stage.STACKS: "stacks dumped",
    Stage.TEARDOWN: "torn down",
    Stage.RENDEZVOUS: "next attempt begun",
    Stage.SPAWN: "spawned",
    Stage.INIT: "joined",
    Stage.RESTORE: "state read",
    Stage.GROUP: "group up",
    Stage.SETUP: "state in place",
    Stage.WARMUP: "first step finished",
}
"""What is done when a part is over."""
LEAST_WORDS = 12
"""Columns for what is told in words; what is longer goes on in the next line, and nothing is left out."""
LISTED = 12
"""How many restarts and faults a table shows; the rest are in `--json`."""


def spreads(report: Report, width: int) -> Table:
    """How long coming back took, each part of it, and a bar for its share in all of them."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for _ in range(4):
        table.add_column(justify="right", no_wrap=True)
    heads = ("seconds", "count", "median", "p90", "max")
    table.add_row(*(Text(head, style="dim") for head in heads))
    _add(table, "last step → next first one", report.durations)
    for stage in Stage:
        picture = bar(report.stage_share(stage), max(0, min(BAR_WIDTH, width - BESIDE_BARS)))
        _add(table, f"  → {ENDS[stage]}", report.stage(stage), picture)
    _add(table, "  then: lost steps regained", report.regaining)
    _add(table, "fault → next first step", report.durations_since_fault)
    return table


def _add(table: Table, label: str, spread: Spread, picture: str = "") -> None:
    if spread.count:
        table.add_row(label, *_figures(spread), Text(picture, "cyan"))


def bar(share: float, width: int) -> str:
    """A bar as long as `share` of `width` columns, to an eighth of one."""
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()


def _figures(spread: Spread) -> list[str]:
    figures = (spread.median_ns, spread.p90_ns, spread.max_ns)
    return [str(spread.count), *("" if ns is None else f"{seconds(ns):.3f}" for ns in figures)]


def comebacks(report: Report) -> RenderableType:
    """Each failure and the way back from it, the newest last."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    for head in ("#", "attempt", "back, s", "resumed at", "lost"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("what happened", overflow="fold", min_width=LEAST_WORDS)
    for one in report.comebacks[-LISTED:]:
        resumed = "" if one.resumed_step is None else f"{one.resumed_step}, {one.tier or 'start'}"
        lost = counted(one.lost_steps, "step")
        table.add_row(str(one.number), str(one.attempt), _back(one), resumed, lost, _happened(one))
    return _cut(table, len(report.comebacks))


def _back(one: Comeback) -> str:
    if one.duration_ns is not None:
        return f"{seconds(one.duration_ns):.3f}"
    return "burnt" if one.burnt else "not yet"


def _happened(one: Comeback) -> str:
    who = "" if one.rank is None else f"rank {one.rank}: "
    fault = f" (fault {', '.join(one.faults)})" if one.faults else ""
    return f"{who}{one.reason or one.cause}{fault}"


def faults(report: Report) -> RenderableType:
    """Each fault of the tape and what became of it."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    for head in ("at", "id", "kind"):
        table.add_column(head, no_wrap=True, justify="right" if head == "at" else "left")
    table.add_column("target", overflow="fold")
    table.add_column("what became of it", overflow="fold", min_width=LEAST_WORDS)
    for one in report.faults[-LISTED:]:
        at = "" if one.at_ns is None else f"{seconds(one.at_ns):.2f} s"
        table.add_row(at, one.id, one.kind, one.target, one.became)
    return _cut(table, len(report.faults))


def _cut(table: Table, count: int) -> RenderableType:
    if count <= LISTED:
        return table
    return Group(table, Text(f"… the last {LISTED} of {count}; all of them: --json", style="dim"))
