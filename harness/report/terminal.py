"""A report for people, on one screen of text: what matters first, tables where there are numbers.

It needs no terminal: without one it is plain text, 80 columns wide.
"""

import io
from collections.abc import Iterator
from math import isfinite

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.report import cells, health, strip, tables
from harness.report.model import Report, Standing
from harness.report.records import Checkpoints
from harness.report.spread import counted, duration, seconds

LEAST_WIDTH = 60

_STYLES = {"kept": "green", cells.LOST: "red"} | {
    kind: style for kind, (_, style) in strip.LOOKS.items()
}
_LEFT = (Standing.FAILED, Standing.DRAINED, Standing.INTERRUPTED)
"""How a run can be left before its end, by a launcher that says so."""
_STANDINGS = {Standing.FINISHED: "bold green", Standing.GOING: "bold cyan"}


def rendered(report: Report, name: str, *, width: int = 80, color: bool = False) -> str:
    """`report` of the run called `name` as text of `width` columns."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=max(LEAST_WIDTH, width),
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    console.print(Group(*_parts(report, name, min(console.width, 120))))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _parts(report: Report, name: str, width: int) -> Iterator[RenderableType]:
    yield _title(report, name)
    if report.standing is not Standing.EMPTY:
        yield _goodput(report)
        yield from _section("where the time went", _time(report, width))
    if report.segments:
        yield from _section("phase by phase", *_strip(report, width))
    if report.comebacks:
        yield from _section(
            "restarts", tables.spreads(report, width), Text(), tables.comebacks(report)
        )
    if report.faults:
        yield from _section("faults", tables.faults(report))
    if report.standing is not Standing.EMPTY:
        yield from _section("training", *_training(report))
    for note in report.notes:
        yield Text(f"note: {note}", style="yellow")


def _section(title: str, *parts: RenderableType) -> Iterator[RenderableType]:
    yield Text()
    yield Text(title, style="bold")
    for part in parts:
        yield Padding(part, (0, 0, 0, 2))


# ── the first lines ─────────────────────────────────────────────────────────────────────────────


def _title(report: Report, name: str) -> Text:
    facts = [
        f"{counted(report.world_size, 'rank')}",
        f"{counted(report.attempts, 'attempt')}",
        f"wall time {duration(report.split.wall_ns)}",
    ]
    if report.standing is Standing.EMPTY:
        facts = ["nothing has happened yet"]
    if report.lives > 1:
        facts.insert(2, f"{report.lives} launches")
    title = Text.assemble(
        ("run ", "dim"),
        (name, "bold"),
        "  ",
        (report.standing.value, _STANDINGS.get(report.standing, "bold red")),
        f"  {', '.join(facts)}",
    )
    if report.reason:
        title.append(f"\n{report.reason}", style="dim")
    return title


def _goodput(report: Report) -> Text:
    return Text.assemble(
        "goodput ", (f"{report.split.goodput:.1%}", "bold"), f" {_footing(len(report.comebacks))}"
    )


def _footing(failures: int) -> str:
    """What a goodput can resolve: failures come at random, so their number is known to its root."""
    if failures == 0:
        return "(no failure in it: it does not say what one costs)"
    error = f"±{100 / failures**0.5:.0f}%"
    return f"(from {counted(failures, 'failure')}: their cost in the long run is known to {error})"


# ── time ────────────────────────────────────────────────────────────────────────────────────────


def _time(report: Report, width: int) -> RenderableType:
    split = report.split
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right", "left"):
        table.add_column(justify=justify)
    longest = max(split.classes_ns().values(), default=0)
    for kind, ns in split.classes_ns().items():
        if ns or kind == "kept":
            drawn = tables.bar(ns / longest if longest else 0.0, width - 46)
            share = ns / split.wall_ns if split.wall_ns else 0.0
            style = _STYLES[kind]
            table.add_row(_called(kind), f"{seconds(ns):.3f} s", f"{share:.1%}", Text(drawn, style))
    table.add_row("sum", f"{seconds(split.wall_ns):.3f} s", "", "")
    shares = [
        f"{kind} {ns / split.wall_ns:.1%}"
        for kind, ns in split.coarse_ns().items()
        if split.wall_ns
    ]
    return Group(table, Text(f"in four kinds: {', '.join(shares)}", style="dim"))


def _called(kind: str) -> str:
    return {"kept": "work kept", "lost": "work lost"}.get(kind, kind.replace("_", " "))


def _strip(report: Report, width: int) -> Iterator[RenderableType]:
    failures_ns = [one.failed_at_ns for one in report.comebacks]
    drawn = strip.rows(report.segments, failures_ns, width - 4)
    yield from drawn
    yield strip.legend(report.segments, failures_ns)
    if drawn:
        cell_ns = report.split.wall_ns // (len(drawn) * (width - 4))
        yield Text(f"one cell: {duration(cell_ns)}", style="dim")


# ── training ────────────────────────────────────────────────────────────────────────────────────


def _training(report: Report) -> Iterator[RenderableType]:
    redone = f", {report.redone_steps} redone" if report.redone_steps else ""
    yield Text(f"steps: {report.step} held, {report.lost_steps} lost{redone}")
    yield from map(Text, report.throughput.lines())
    if report.validations:
        first, last = report.validations[0], report.validations[-1]
        losses = f"{first.value:.4f} (step {first.step}) → {last.value:.4f} (step {last.step})"
        yield Text.assemble("validation loss: ", (losses, "bold"))
    if report.loss is not None:
        yield Text(f"last training loss: {report.loss:.4f}")
    for found in health.lines(report.findings):
        yield Text(found.text, style="yellow" if found.is_bad else "")
    yield from map(Text, report.slowness.lines(report.world_size))
    saves = report.checkpoints
    if saves.committed or saves.failed or saves.rejected or saves.copies:
        yield Text(_saves(report))
    yield from _uncommitted(report)
    yield from _intervals(saves)
    for line in saves.rejected:
        yield Text(f"rejected: {line}", style="yellow")
    for name, helper in report.helpers.items():
        again = f"{name}: started again {counted(helper.restarts, 'time')}"
        yield Text(f"{again}, last because of {helper.reason}", style="yellow")
    if report.final_digest is not None:
        yield Text(f"final digest: {report.final_digest}")


def _uncommitted(report: Report) -> Iterator[RenderableType]:
    """Steps of a run that was left before its end, which are in memory at best."""
    done = report.checkpoints.last_step or 0
    again = report.step - done
    if report.standing in _LEFT and again > 0:
        newest = f"which has step {done}" if done else "which has nothing"
        yield Text(f"{counted(again, 'step')} not in the storage, {newest}", style="yellow")


def _intervals(saves: Checkpoints) -> Iterator[RenderableType]:
    for tier, chosen in saves.intervals.items():
        lasting = duration(round(chosen.seconds * 1e9)) if isfinite(chosen.seconds) else "–"
        every = f"{counted(chosen.steps, 'step')} ({lasting})"
        yield Text(f"to {tier} every {every}: {chosen.reason}", style="dim")


def _saves(report: Report) -> str:
    saves = report.checkpoints
    last = "" if saves.last_step is None else f", the last at step {saves.last_step}"
    mean = f", {duration(saves.commit_ns // saves.commits)} each to commit" if saves.commits else ""
    copies = f" {saves.copies} kept in memory;" if saves.copies else ""
    return (
        f"checkpoints: {saves.committed} committed{last}, {saves.failed} failed,"
        f" {len(saves.rejected)} rejected; {saves.bytes / 1e6:,.1f} MB{mean};{copies}"
        f" training waited {duration(saves.stall_ns)}"
    )
