"""A plan and its tape as people read them, before anything breaks."""

from collections import Counter
from datetime import timedelta
from itertools import pairwise
from statistics import fmean
from typing import assert_never

from faultinject.tape import Arrival, Exponential, Instants, Plan, Tape, Uniform, counted

WIDTH = 72
"""Columns of the picture."""
MOST_LINES = 40
"""Faults listed one by one."""


def rendered(plan: Plan, tape: Tape) -> str:
    """The plan in a line, the tape as a picture and a table, and what they come to."""
    comes = f", {arrival(plan.arrival)}" if plan.choices else ""
    lines = [
        f"{counted(tape)}{comes}, seed {tape.seed}; plan {tape.plan}",
        "Time 0 is the run's first committed save. A fault whose target is down waits for it.",
        "",
    ]
    if tape.faults:
        lines += [_picture(tape), "", *_table(tape), "", *_sums(plan, tape), ""]
    if tape.storage:
        lines += ["Storage behind chaos::, all processes of the run counted together:", ""]
        lines += [f"s{number}  {rule}" for number, rule in enumerate(tape.storage, start=1)]
    return "\n".join(lines).rstrip() + "\n"


def arrival(chosen: Arrival) -> str:
    """How faults arrive, in words."""
    match chosen:
        case Exponential(mtbf_s):
            return f"exponential gaps of mean {mtbf_s:g} s"
        case Uniform(min_s, max_s):
            return f"uniform gaps of {min_s:g} to {max_s:g} s"
        case Instants():
            return "at given instants"
    assert_never(chosen)


def _picture(tape: Tape) -> str:
    """One line from time 0 to the last fault: where in it faults fall, and how many."""
    last_s = tape.faults[-1].at_s
    columns = Counter(
        int(fault.at_s / last_s * (WIDTH - 1)) if last_s > 0 else 0 for fault in tape.faults
    )
    marks = ["─" if not columns[column] else _mark(columns[column]) for column in range(WIDTH)]
    return f"0 {''.join(marks)} {clock(last_s)}"


def _mark(count: int) -> str:
    if count == 1:
        return "×"
    return str(count) if count < 10 else "#"


def _table(tape: Tape) -> list[str]:
    rows = [("id", "at", "gap", "kind", "target")]
    before_s = 0.0
    for fault in tape.faults[:MOST_LINES]:
        gap = f"{fault.at_s - before_s:.1f} s"
        rows.append((fault.id, clock(fault.at_s), gap, fault.kind, str(fault.target)))
        before_s = fault.at_s
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [
        f"{name:<{widths[0]}}  {at:>{widths[1]}}  {gap:>{widths[2]}}  {kind:<{widths[3]}}  {target}"
        for name, at, gap, kind, target in rows
    ]
    if len(tape.faults) > MOST_LINES:
        lines.append(f"… and {len(tape.faults) - MOST_LINES} more")
    return lines


def _sums(plan: Plan, tape: Tape) -> list[str]:
    instants = [plan.start_delay_s, *(fault.at_s for fault in tape.faults)]
    gaps = [later - earlier for earlier, later in pairwise(instants)]
    kinds = Counter(fault.kind for fault in tape.faults)
    targets = Counter(fault.target.number for fault in tape.faults)
    return [
        f"mean gap  {fmean(gaps):.1f} s, least {min(gaps):.1f} s, most {max(gaps):.1f} s",
        f"kinds     {', '.join(f'{kind} {count}' for kind, count in kinds.most_common())}",
        f"targets   {', '.join(f'rank {rank}: {targets[rank]}' for rank in sorted(targets))}",
    ]


def clock(seconds: float) -> str:
    """`1:02:03.4`, with days in front where there are any."""
    tenths = timedelta(seconds=round(seconds, 1))
    text = str(tenths)
    return text[:-5] if "." in text else f"{text}.0"
