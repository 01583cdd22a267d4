"""Writes a simulated run as a run directory: every reader of runs opens it like any other."""

from collections.abc import Iterable, Sequence
from typing import BinaryIO

from harness import settings
from harness.events import SCHEMA, Entry, Header
from harness.lines import encode
from harness.rundir import RunDir

BEGAN_NS = 1_577_836_800 * 10**9
"""Simulated runs begin on 1 January 2020, so that the same run makes the same files."""


def check(run_dir: RunDir) -> None:
    """Raise `ValueError` where no run may be written, before anything is simulated."""
    if run_dir.path.exists() and any(run_dir.path.iterdir()):
        raise ValueError(f"{run_dir.path} is not empty: name another directory for --run")


def write(run_dir: RunDir, run_id: str, entries: Iterable[Entry], command: Sequence[str]) -> int:
    """Write the run; gives the number of its events."""
    check(run_dir)
    run_dir.create()
    asked = settings.resolve([("simulate", {"save_every_steps": 1})])
    settings.write(run_dir.settings, settings.Record(run_id, command, asked, {}))
    files: dict[str, BinaryIO] = {}
    count = 0
    try:
        for entry in entries:
            if entry.writer not in files:
                files[entry.writer] = run_dir.event_file(entry.writer).open("xb")
                files[entry.writer].write(encode(_header(run_id, entry.writer)))
            files[entry.writer].write(encode(entry))
            count += 1
    finally:
        for file in files.values():
            file.close()
    return count


def _header(run_id: str, writer: str) -> Header:
    nowhere = "simulated"
    return Header(SCHEMA, run_id, writer, nowhere, nowhere, 0, 0, BEGAN_NS)
