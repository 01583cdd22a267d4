"""Where a run is served, as its exporter wrote it down, for people who want to open it."""

import json
from dataclasses import dataclass

from harness.rundir import RunDir


@dataclass(frozen=True, slots=True)
class Place:
    """An exporter and its address."""

    page: str
    """URL of the run's page."""
    pid: str
    """Of the exporter: one that was killed left its place to the next one, or to nobody."""


def place(run_dir: RunDir) -> Place | None:
    """Where the run is served; None where nothing is written down that can be read."""
    try:
        (group,) = json.loads(run_dir.exporter.read_text())
        labels = group["labels"]
        page = f"{labels['__scheme__']}://{group['targets'][0]}/"
        return Place(page, labels["__meta_harness_pid"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
