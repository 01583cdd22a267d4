"""Two real jobs, one of them under faults, scraped each second by a real Prometheus: all on loopback, all gone afterwards."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.rundir import RunDir

ROOT = Path(__file__).parent.parent.parent
_PLAN = """\
schema = 1
seed = 3
max_faults = {kills}
[arrival]
instants = {instants}
[[faults]]
kind = "kill"
weight = 1
target = "any rank"
[[storage]]
kind = "eio"
operations = ["create"]
nth = 4
"""
_CONFIG = """\
global:
  scrape_interval: 1s
rule_files: [{rules}]
scrape_configs:
  - job_name: harness
    file_sd_configs:
      - files: {files}
        refresh_interval: 1s
"""
_PATIENCE_S = 180
_LEAVING_S = 60


@dataclass(frozen=True, slots=True)
class Scene:
    """A Prometheus that has seen it all, and when that was."""

    url: str
    job_name: str
    run_id: str
    start_s: float
    end_s: float

    @property
    def values(self) -> dict[str, str]:
        """Of the variables of the dashboard of one run; the fleet's take all."""
        shown_s = max(1, round(self.end_s - self.start_s))
        return {
            "job_name": self.job_name,
            "run_id": self.run_id,
            "__range": f"{shown_s}s",
            "__rate_interval": "5s",
        }


@contextmanager
def scene(folder: Path, pages: Path, kills: int, gap_s: float) -> Iterator[Scene]:
    """Start everything, and give it once `kills` kills, `gap_s` apart, are over and the job is back at work."""
    broken, calm = folder / "runs" / "gpt", folder / "runs" / "gpt-calm"
    with ExitStack() as stack:
        url = stack.enter_context(_prometheus(folder, pages, [broken, calm]))
        plan = folder / "plan.toml"
        instants = [round(gap_s * (1 + place), 1) for place in range(kills)]
        plan.write_text(_PLAN.format(kills=kills, instants=instants))
        stack.enter_context(_job(broken, ["--faults", str(plan), *_faulty(broken)]))
        stack.enter_context(_job(calm, []))
        _wait(url, f'sum(harness_restarts_total{{job_name="gpt"}}) >= {kills}', "restarts")
        _wait(url, 'harness_checkpoint_last_step{job_name="gpt",tier="storage"}', "commits")
        _wait(
            url, 'min(increase(harness_steps_total{kind="useful"}[4s])) > 0', "steps of both jobs"
        )
        time.sleep(gap_s)
        up = 'harness_launcher_up{job_name="gpt"}'
        began = ask(url, "query", query=f"min(min_over_time(timestamp({up})[1h:1s]))")
        seen = ask(url, "query", query=up)
        start_s, run_id = float(began[0]["value"][1]), seen[0]["metric"]["run_id"]
        yield Scene(url, "gpt", run_id, start_s, time.time())


def missing() -> str | None:
    """What this needs and is not there."""
    lacking = [name for name in ("prometheus",) if shutil.which(name) is None]
    return f"no {', '.join(lacking)} here" if lacking else None


def ask(url: str, kind: str, **parameters: str | float) -> Any:
    """What Prometheus' API answers. Raises `ValueError` with its words where it refuses."""
    encoded = urllib.parse.urlencode(parameters)
    try:
        with urllib.request.urlopen(f"{url}/api/v1/{kind}?{encoded}", timeout=30) as answer:  # noqa: S310
            return json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        raise ValueError(json.load(error)["error"]) from error


def _faulty(run: Path) -> Sequence[str]:
    return ["--checkpoints", f"chaos::file://{run}-checkpoints"]


@contextmanager
def _job(run: Path, flags: Sequence[str]) -> Iterator[None]:
    script = [str(ROOT / "examples" / "train_gpt.py"), "--preset", "tiny", "--steps", "1000000"]
    script += ["--count-flops"]
    ranks = ["--nproc-per-node", "2", "--storage-every", "20 steps", "--memory-every", "5 steps"]
    ranks += ["--target-losses", "100,4"]
    run.parent.mkdir(parents=True, exist_ok=True)
    with run.with_suffix(".log").open("wb") as log:
        command = [
            sys.executable,
            "-m",
            "harness",
            "run",
            "--run",
            str(run),
            *flags,
            *ranks,
            *script,
        ]
        with _ended(command, log, signal.SIGTERM):
            yield


@contextmanager
def _prometheus(folder: Path, pages: Path, runs: Sequence[Path]) -> Iterator[str]:
    config, port = folder / "prometheus.yml", _free_port()
    files = [str(RunDir.at(run).exporter) for run in runs]
    rules = json.dumps(str(ROOT / "dashboards" / "prometheus" / "*-rules.yml"))
    config.write_text(_CONFIG.format(files=json.dumps(files), rules=rules))
    url = f"http://127.0.0.1:{port}"
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", f"--web.console.templates={pages}"]
    with (folder / "prometheus.log").open("wb") as log, _ended(command, log, signal.SIGTERM):
        _wait(url, "vector(1)", "Prometheus")
        yield url


@contextmanager
def _ended(command: Sequence[str], log: Any, how: signal.Signals) -> Iterator[None]:
    process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=dict(os.environ))
    try:
        yield
    finally:
        process.send_signal(how)
        try:
            process.wait(timeout=_LEAVING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(url: str, query: str, name: str) -> None:
    """Until `query` gives something."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        try:
            if ask(url, "query", query=query):
                return
        except OSError:
            pass  # not yet up
        time.sleep(0.2)
    raise TimeoutError(f"no {name} within {_PATIENCE_S} s: {query}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
