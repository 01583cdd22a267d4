"""The commands of `harness` about runs that are there: they read the run directory, and answer.

Each gives its exit status: 0 done, 1 the answer is no, 2 a mistake in how it was called.
"""

import re
import sys
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, Token

from harness.rundir import RunDir

DONE = 0
NO = 1
USAGE = 2

Flag = Parameter(negative="")


def _whole(_: type, tokens: Sequence[Token]) -> int:
    """A number without a fraction: cyclopts by itself would round one off, and say nothing."""
    text = tokens[0].value
    if not re.fullmatch(r"[+-]?\d{1,30}", text):
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(text)


Whole = Parameter(converter=_whole)


def report(run: Path, /, *, json: Annotated[bool, Flag] = False) -> int:
    """Say where the time of a run went and what broke.

    Parameters
    ----------
    run
        Directory of the run; it may still be going.
    json
        One JSON object instead of the report for people.
    """
    run_dir = run_at(run)
    if run_dir is None:
        return USAGE
    import harness.report

    try:
        if json:
            told = dumps(harness.report.report(run_dir).to_json(), indent=2) + "\n"
        else:
            told = harness.report.summary(run_dir)
    except (OSError, ValueError) as error:
        return refused(f"the log of {run} cannot be read: {error}", NO)
    print(told, end="")  # noqa: T201
    return DONE


def sweep(*runs: Path, all: Annotated[bool, Flag] = False) -> int:  # noqa: A002  # the flag's name
    """Take away what dead runs left in memory.

    For the end of a batch job, say. A run that is at work is left alone.

    Parameters
    ----------
    runs
        Directories of runs.
    all
        Every dead run of this user on this machine, in /dev/shm and at savers.
    """
    from harness.checkpoint.leftovers import sweep_all, sweep_run

    if not runs and not all:
        return refused("name the run directories whose memory is to go, or give --all")
    run_dirs = [run_at(run) for run in runs]
    if None in run_dirs:
        return USAGE
    status = DONE
    for run_dir in filter(None, run_dirs):
        try:
            print(f"{run_dir.path}: {sweep_run(run_dir)}", flush=True)  # noqa: T201
        except (OSError, ValueError) as error:
            status = refused(str(error), NO)
    for line in sweep_all() if all else ():
        print(line, flush=True)  # noqa: T201
    return status


def verify(run: Path, twin: Path, /) -> int:
    """Say whether two runs did the same, bit for bit.

    Exit status 1 if not.

    Parameters
    ----------
    run
        Directory of the run to judge.
    twin
        Directory of the run that it should equal.
    """
    here, there = run_at(run), run_at(twin)
    if here is None or there is None:
        return USAGE
    import harness.verify

    try:
        verdict = harness.verify.verify(here.path, there.path)
    except (OSError, ValueError) as error:
        return refused(f"the logs of {run} and {twin} cannot be compared: {error}", NO)
    print(f"{verdict.judgement}: {verdict.detail}")  # noqa: T201
    return DONE if verdict.exact else NO


def export(
    runs: list[Path],
    /,
    *,
    openmetrics: Annotated[bool, Flag] = False,
    every: float | None = None,
    port: Annotated[int | None, Whole] = None,
    host: str = "127.0.0.1",
    access: Path | None = None,
    with_parent: Annotated[bool, Flag] = False,
) -> int:
    """Serve a run's metrics for Prometheus until told to stop.

    With --openmetrics, write those of runs that are over instead.

    Parameters
    ----------
    runs
        Directory of the run; where it is served is written to its exporter.json.
    openmetrics
        Write the metrics of one or more runs over all of their time to standard output, for
        `promtool tsdb create-blocks-from openmetrics`.
    every
        With --openmetrics: seconds between the instants. Default: about 2000 instants, 1 to 240 s apart;
        beyond 300 Prometheus shows gaps.
    port
        TCP port; 0 takes a free one. Default: 9464, or a free one where that is taken.
    host
        Address to listen on; only this machine by default.
    access
        TOML file that says who may ask: tables [tls] and [users], as docs/metrics.md has them.
    with_parent
        Die with the process that started this one.
    """
    run_dirs = [found for run in runs if (found := run_at(run)) is not None]
    if len(run_dirs) < len(runs):
        return USAGE
    if openmetrics:
        return _write_out(run_dirs, every)
    if every is not None or len(run_dirs) != 1:
        return refused("one run is served at a time; several, and --every, go with --openmetrics")
    import harness.exporter

    return harness.exporter.serve(run_dirs[0], host, port, access, with_parent)


def _write_out(run_dirs: list[RunDir], every_s: float | None) -> int:
    """Write the metrics of runs that are over to standard output."""
    import harness.backfill

    try:
        harness.backfill.check_interval(every_s)
    except ValueError as error:
        return refused(str(error))
    try:
        harness.backfill.write(run_dirs, every_s, sys.stdout)
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        return refused(str(error), NO)
    return DONE


def target(runs: list[Path], /, *, loss: str, json: Annotated[bool, Flag] = False) -> int:
    """Say how many steps and how much time each run took to come to a validation loss.

    Parameters
    ----------
    runs
        Directories of the runs; the others are compared with the first.
    loss
        The losses: 2.8,2.6,2.4.
    json
        One JSON object instead of the tables.
    """
    if any(run_at(run) is None for run in runs):
        return USAGE
    from harness.journal import read
    from harness.report import reached
    from harness.targets import evaluations

    try:
        losses = reached.targets(loss)
    except ValueError as error:
        return refused(str(error))
    try:
        held = {str(run): evaluations(read(RunDir.at(run))) for run in runs}
        if bare := [name for name, found in held.items() if not found]:
            return refused(f"no evaluation with a loss in {', '.join(bare)}: nothing to look for")
    except (OSError, ValueError) as error:
        return refused(str(error), NO)
    told = dumps(reached.to_json(held, losses), indent=2) + "\n" if json else None
    print(told or reached.told(held, losses), end="")  # noqa: T201
    return DONE


# ── what they share ─────────────────────────────────────────────────────────────────────────────


def run_at(path: Path) -> RunDir | None:
    """The run at `path`; None, and a line on stderr, where there is none."""
    run_dir = RunDir.at(path)
    try:
        if run_dir.events.is_dir() or run_dir.settings.is_file():
            return run_dir
        reason = f"it holds neither {run_dir.events.name}/ nor {run_dir.settings.name}"
        if not run_dir.path.is_dir():
            there = run_dir.path.exists()
            reason = "that is no directory" if there else "there is no such directory"
    except OSError as error:
        reason = str(error)
    refused(f"no run at {path}: {reason}")
    return None


def refused(line: str, status: int = USAGE) -> int:
    """Say why not, and give the exit status."""
    print(f"harness: {line}", file=sys.stderr)  # noqa: T201
    return status
