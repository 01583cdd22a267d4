"""`harness plan`: what a job of a given size will reach, and what would help it most."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.planning.flags import NOTHING_ASKED, Flags, asked, preset
from harness.planning.measured import Seen

DONE, USAGE = 0, 2


def plan(*, flags: Flags = NOTHING_ASKED) -> int:
    """Say how often a job of a given size fails, how often to save, what it loses, and what pays most.

    Durations carry a unit (ms, s, min, h, d, y), sizes B to PB. Planning needs no hardware.

    What is not given is UNKNOWN, never guessed.
    """
    try:
        known = preset(flags)
        seen = _seen(flags.from_) if flags.from_ else None
        _tell(flags, seen, "" if known is None else f"{flags.preset}: {known.source}\n\n")
    except (OSError, ValueError) as error:
        print(f"harness: {error}", file=sys.stderr)  # noqa: T201
        return USAGE
    return DONE


def _tell(flags: Flags, seen: Seen | None, source: str) -> None:
    from harness.planning import document, reading, tell
    from harness.planning.plan import plan as made

    of = made(asked(flags, seen))
    if flags.json:
        text = json.dumps(document.to_json(of, seen), indent=2) + "\n"
    else:
        text = source + ("" if seen is None else reading.told(seen) + "\n") + tell.told(of)
    print(text, end="")  # noqa: T201


def _seen(runs: Sequence[Path]) -> Seen:
    """What the run directories say. Raises `ValueError` for one that is none, or that says nothing."""
    from harness.planning import measured
    from harness.report import told_of
    from harness.rundir import RunDir

    return measured.seen({str(run): told_of(RunDir.at(run)) for run in runs})
