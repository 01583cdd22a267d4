"""Where a run is served, as its exporter wrote it down: for people who want to open it, and while it is true."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from harness.replace import replace_file
from harness.rundir import RunDir


@dataclass(frozen=True, slots=True)
class Place:
    """An exporter and its address."""

    page: str
    """URL of the run's page."""
    pid: str
    """Of the exporter: one that was killed left its place to the next one, or to nobody."""
    instance: str = ""
    """Machine and run directory."""


def place(run_dir: RunDir) -> Place | None:
    """Where the run is served; None where nothing is written down that can be read."""
    try:
        (group,) = json.loads(run_dir.exporter.read_text())
        labels = group["labels"]
        page = f"{labels['__scheme__']}://{group['targets'][0]}/"
        return Place(page, labels["__meta_harness_pid"], labels.get("instance", ""))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def forget_dead(run_dir: RunDir) -> None:
    """Take away the address of an exporter of this machine that is dead: it is missed while nobody leads the run."""
    found = place(run_dir)
    here = found is not None and found.instance.startswith(f"{socket.gethostname()}:")
    if found is None or not here or Path(f"/proc/{found.pid}").exists():
        return
    with suppress(OSError):
        run_dir.exporter.unlink()


@contextmanager
def address_kept(run_dir: RunDir) -> Iterator[None]:
    """Leave the address, though its exporter ends in here: that nobody answers there tells of a run that failed."""
    kept = b""
    with suppress(OSError):
        kept = run_dir.exporter.read_bytes()
    yield
    if kept:
        with suppress(OSError):
            replace_file(run_dir.exporter, kept)
