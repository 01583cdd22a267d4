"""The command `harness doctor`: flags in, a line for each check out.

Exit status: 0 all is well or could be better, 1 a run would not start or would break, 2 wrong usage.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.events import Tier
from harness.intervals import asked as intervals
from harness.metrics import USUAL_PORT
from harness.quantities import BYTES, duration_s, quantity
from harness.settings import Settings
from launch import options
from launch.doctor import look
from launch.doctor.facts import Asked, Finding, Level
from launch.doctor.judge import findings, worst
from launch.flags import NEGATIVE, add_hangs

SCHEMA = 1
DONE, NO, USAGE = 0, 1, 2
RANKS_ON_CPU = 2


def doctor(argv: list[str]) -> int:
    """Check a machine before a run: each line ok, warn or fail, and what to do."""
    try:
        given = _parser().parse_args(argv)
    except SystemExit as end:  # argparse has printed why
        return USAGE if end.code else DONE
    if mistakes := [*options.mistaken_run(given.run), *options.mistaken_hangs(given)]:
        print("\n".join(f"harness doctor: {line}" for line in mistakes), file=sys.stderr)  # noqa: T201
        return USAGE
    if not given.json:
        print("trying out this machine, for some seconds …", file=sys.stderr)  # noqa: T201
    facts = look.facts(given.run, given.checkpoints, given.metrics_port, os.environ)
    asked = Asked(
        ranks=given.nproc_per_node or len(facts.trial.gpus) or RANKS_ON_CPU,
        state_bytes=given.state,
        keep=given.keep,
        limits=options.hangs(given),
        slowest_step_s=given.step,
        metrics_port=given.metrics_port,
        memory=not isinstance(given.memory_every, intervals.Off),
    )
    found = findings(facts, asked)
    told = json.dumps(to_json(found, asked), indent=2) if given.json else text(found)
    print(told)  # noqa: T201
    return status(found)


def status(found: Sequence[Finding]) -> int:
    """The exit status that goes with the findings."""
    return NO if worst(found) is Level.FAIL else DONE


def text(found: Sequence[Finding]) -> str:
    """The findings for people."""
    width = max(len(one.check) for one in found)
    lines: list[str] = []
    for one in found:
        lines.append(f"{one.level:<4}  {one.check:<{width}}  {one.found}")
        if one.advice:
            lines.append(f"{'':<{width + 8}}→ {one.advice}")
    counts = [f"{sum(one.level is level for one in found)} {level}" for level in Level]
    return "\n".join([*lines, ", ".join(counts)])


def to_json(found: Sequence[Finding], asked: Asked) -> dict[str, Any]:
    """The same for programs."""
    return {
        "schema": SCHEMA,
        "ranks": asked.ranks,
        "level": worst(found).value,
        "findings": [
            {"check": one.check, "level": one.level, "found": one.found, "advice": one.advice}
            for one in found
        ],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="harness doctor",
        description=doctor.__doc__,
        epilog="Exit status: 0 ok or warnings, 1 a check failed, 2 wrong usage.",
    )
    parser._negative_number_matcher = NEGATIVE
    add = parser.add_argument
    ranks = f"ranks of the run (default: one for each GPU, or {RANKS_ON_CPU} on a CPU)"
    add("--nproc-per-node", type=_count, metavar="N", help=ranks)
    state = "size of what is saved, of the whole job: model, optimizer and the rest, as in 4GB"
    add("--state", type=_size, metavar="SIZE", help=state)
    where = "fsspec URL or folder of the checkpoints (default: beside the run)"
    add("--checkpoints", default="", metavar="URL", help=where)
    add(
        "--run",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="run directory (default: runs)",
    )
    keep = Settings().keep
    add(
        "--keep", type=_count, default=keep, metavar="N", help=f"checkpoints kept (default: {keep})"
    )
    every = "as for `harness run`; 'off' keeps no copies in memory (default: auto)"
    add("--memory-every", type=_interval, default="auto", metavar="INTERVAL", help=every)
    add("--step", type=_time, metavar="TIME", help="the slowest normal step, as in 800ms")
    port = f"port of /metrics (default: {USUAL_PORT})"
    add("--metrics-port", type=_port, metavar="PORT", help=port)
    add("--json", action="store_true", help="one JSON object instead of the lines for people")
    add_hangs(parser.add_argument_group("when a rank counts as hung, in seconds without progress"))
    return parser


def _count(text_: str) -> int:
    if not text_.isdecimal() or not 1 <= int(text_) <= 4096:
        raise argparse.ArgumentTypeError(f"{text_!r} is no number from 1 to 4096")
    return int(text_)


def _size(text_: str) -> int:
    try:
        size = quantity(text_, BYTES, "4GB")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 0 < size < float("inf"):
        raise argparse.ArgumentTypeError(f"{text_!r} is no size above 0")
    return int(size)


def _time(text_: str) -> float:
    try:
        seconds = duration_s(text_)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 0 < seconds < options.LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text_!r} is no time above 0")
    return seconds


def _interval(text_: str) -> intervals.Asked:
    try:
        return intervals.parse(text_, Tier.MEMORY)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _port(text_: str) -> int:
    if not text_.isdecimal() or int(text_) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"{text_!r} is no TCP port: it is 0 to 65535")
    return int(text_)
