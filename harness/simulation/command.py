"""`harness simulate`: how often to save, before there is a run. Says, draws, and writes a run down."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.rundir import RunDir, check_local
from harness.simulation.flags import NOTHING_ASKED, Flags, job, preset

if TYPE_CHECKING:
    from harness.simulation.asked import Asked
    from harness.simulation.study import Study

DONE, NO, USAGE = 0, 1, 2


def simulate(*, flags: Flags = NOTHING_ASKED) -> int:
    """Say how often a job should save and what it will reach, by simulation and by theory.

    Durations carry a unit: ms, s, min, h, d, y. Planning needs no hardware.
    """
    try:
        if flags.check_vectors is not None:
            return _check(flags.check_vectors)
        _study(flags)
    except (OSError, ValueError) as error:
        print(f"harness: {error}", file=sys.stderr)  # noqa: T201
        return USAGE
    return DONE


def _study(flags: Flags) -> None:
    from harness.simulation import figure, record
    from harness.simulation.study import study
    from harness.simulation.tell import to_json, told

    asked = job(flags)
    if flags.figure is not None:
        figure.check(flags.figure)
    if flags.run is not None:
        check_local(flags.run)
    run_dir = None if flags.run is None else RunDir.at(flags.run)
    if run_dir is not None:
        record.check(run_dir)
    of = study(asked, _progress)
    if flags.json:
        _say(json.dumps(to_json(asked, of), indent=2))
    else:
        known = preset(flags)
        _say(*([] if known is None else [f"{flags.preset}: {known.source}"]), told(asked, of))
    if flags.figure is not None:
        figure.draw(asked, of, flags.figure)
        _note(flags, f"figure: {flags.figure}")
    if run_dir is not None:
        count = _write(flags, asked, of, run_dir)
        _note(flags, f"{count:,} events of a run: harness report {flags.run}")


def _write(flags: Flags, asked: "Asked", of: "Study", run_dir: RunDir) -> int:
    """The first run at the best interval, as a run directory."""
    from harness.simulation import record
    from harness.simulation.job import Appearance, SimulatedJob
    from harness.simulation.loop import Costs
    from harness.simulation.trouble import NODE_LOSS

    known = preset(flags)
    appearance = Appearance(
        run_id=f"simulated-{flags.preset or 'job'}",
        ranks=asked.ranks if known is None else known.gpus,
        blames=NODE_LOSS if known is None else known.blames,
    )
    costs = Costs(of.best.interval_s, asked.save_s, asked.restart_s, asked.horizon_s)
    one = SimulatedJob(costs, asked.failures, asked.options, asked.seeds[0], appearance)
    command = ["harness", *sys.argv[1:]]
    return record.write(run_dir, appearance.run_id, one.entries(), command)


def _check(path: Path) -> int:
    """Compare every row of the file with the loop, and with the sweep."""
    from harness.simulation import vectors
    from harness.simulation.sweep import simulated as swept

    held = vectors.read(path)
    wrong: list[str] = []
    for row in held.rows:
        ways = (
            ("loop", vectors.simulated(row), vectors.LOOP_TOLERANCE),
            ("sweep", swept(row.costs, row.mtbf_s, row.seed), vectors.SWEEP_TOLERANCE),
        )
        found = [
            f"{row.name}: {way}: {difference}"
            for way, ours, tolerance in ways
            for difference in vectors.differences(row.told, ours, tolerance)
        ]
        wrong += found[:1]
    streams = [seed for seed, told in held.streams.items() if not vectors.stream_agrees(seed, told)]
    _say(*wrong)
    _say(*(f"seed {seed}: mulberry32 gives other numbers" for seed in streams))
    agree, all_of_them = len(held.rows) - len(wrong), len(held.rows)
    _say(f"{agree} of {all_of_them} rows agree: counts equal, floats to 1e-12 (loop), 1e-9 (sweep)")
    if held.streams:
        right = len(held.streams) - len(streams)
        _say(f"{right} of {len(held.streams)} streams of random numbers agree to the last bit")
    return NO if wrong or streams else DONE


def _say(*lines: str) -> None:
    for line in lines:
        print(line)  # noqa: T201


def _note(flags: Flags, line: str) -> None:
    """Where a result is; beside JSON it goes where people look."""
    print(line, file=sys.stderr if flags.json else sys.stdout)


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)  # noqa: T201
