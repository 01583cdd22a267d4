"""A real Prometheus for tests, on loopback, gone afterwards; and what it answers."""

import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from dashboards.checks.scene import ask
from harness.metrics import FAMILIES, Kind
from tests.waiting import until

DEADLINE_S = 90.0
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="no prometheus here (Debian's package of that name has it and promtool)",
)
_CONFIG = """\
global:
  scrape_interval: 1s
scrape_configs:
  - job_name: harness
    file_sd_configs:
      - files: {files}
        refresh_interval: 1s
"""


@contextmanager
def serving(folder: Path, files: Sequence[Path] = (), scheme: str = "") -> Iterator[str]:
    """Its URL; it scrapes what `files` name, and keeps its data in `folder / "data"`."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    config = folder / "prometheus.yml"
    named = json.dumps([str(file) for file in files]) if files else "[none.json]"
    config.write_text(_CONFIG.format(files=named) + scheme)
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        awaited(lambda: is_ready(url), "Prometheus is ready")
        yield url
    finally:
        process.kill()
        process.wait()


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=10):
            return True
    except OSError:
        return False


def awaited(condition: Callable[[], bool], what: str) -> None:
    until(condition, what, DEADLINE_S, look_s=0.1)


def values(url: str, query: str, at_s: float | None = None) -> list[float]:
    """What an instant query gives, in order of size."""
    when = {} if at_s is None else {"time": at_s}
    return sorted(float(one["value"][1]) for one in ask(url, "query", query=query, **when))


def falls(url: str, window: str, at_s: float | None = None) -> list[str]:
    """The counters that fell within a window: none may."""
    counters = [name for name, family in FAMILIES.items() if family.kind is Kind.COUNTER]
    counters += [
        f"{name}_{part}"
        for name, family in FAMILIES.items()
        if family.kind is Kind.HISTOGRAM
        for part in ("bucket", "count", "sum")
    ]
    return [name for name in counters if values(url, f"resets({name}[{window}]) > 0", at_s)]


def holds(url: str, query: str) -> Callable[[], bool]:
    """Whether a query gives anything."""
    return lambda: bool(values(url, query))
