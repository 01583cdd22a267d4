"""A real Prometheus watches a real run through kills of its ranks, its exporter and its launcher."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from harness.metrics import FAMILIES
from harness.rundir import RunDir
from tests import prometheus
from tests.job.conftest import SCRIPT, Job
from tests.prometheus import awaited, holds, values

pytestmark = [pytest.mark.processes, prometheus.needs_prometheus]
NOW_AND_THEN = {
    "harness_straggler_delay_seconds",
    "harness_straggler_named",
    "harness_rank_progress_timestamp_seconds",
    "harness_step_slowdown_ratio",
}
"""What is told only while it is so."""


def launched(job: Job, port: int):
    ours = ["--run", "run", "--save-every-steps", "20", "--threads", "1"]
    ours += ["--metrics-port", str(port)]
    theirs = ["--preset", "tiny", "--steps", "1000000", "--data", str(job.text)]
    command = ["run", *ours, "--nproc-per-node", "2", str(SCRIPT), *theirs]
    return job.zygote.launch(command, job.folder)


def exporting(run_dir: RunDir) -> int:
    """The pid of the exporter that says in the run directory where it serves; 0 where none does."""
    try:
        (group,) = json.loads(run_dir.exporter.read_text())
    except OSError:
        return 0
    pid = int(group["labels"]["__meta_harness_pid"])
    return pid if psutil.pid_exists(pid) else 0


def kill_rank(run_dir: RunDir, rank: int) -> None:
    os.kill(json.loads(run_dir.worker(rank).read_text())["pid"], signal.SIGKILL)


def seen(url: str) -> set[str]:
    """Every series that Prometheus ever had of the run, without what comes and goes."""
    found = ask_series(url)
    return {json.dumps(one, sort_keys=True) for one in found if one["__name__"] not in NOW_AND_THEN}


def ask_series(url: str) -> list[dict[str, str]]:
    match = "match[]=%7B__name__%3D~%22harness_.%2B%22%7D"
    with urlopen(f"{url}/api/v1/series?{match}", timeout=30) as answer:
        return list(json.load(answer)["data"])


def test_prometheus_sees_one_run_through_kills_of_rank_exporter_and_launcher(job, tmp_path):
    run_dir = RunDir.at(job.path)
    at_work = "sum(increase(harness_steps_total[3s])) > 0"
    with socket.socket() as taken, prometheus.serving(tmp_path, [run_dir.exporter]) as url:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        first = launched(job, port)
        awaited(holds(url, "harness_checkpoint_last_step >= 20"), "the first save")

        kill_rank(run_dir, 1)
        awaited(holds(url, "sum(harness_restarts_total) == 1"), "the restart")
        awaited(
            holds(url, f"harness_unattended_recoveries_total == 1 and on() {at_work}"),
            "the way back",
        )

        former = exporting(run_dir)
        os.kill(former, signal.SIGKILL)
        awaited(lambda: exporting(run_dir) not in (0, former), "another exporter")
        awaited(holds(url, "up == 1"), "its first scrape")
        known = seen(url)

        first.signal(signal.SIGKILL)
        first.wait()
        awaited(lambda: not holds(url, 'harness_phase{phase="work"} == 1')(), "its silence")
        awaited(holds(url, "up == 0"), "that nobody answers, which an alert is about")
        beside = job.zygote.launch(["export", "run", "--port", "0"], job.folder)
        awaited(holds(url, 'harness_phase{phase="down"} == 1'), "that it is down")
        assert values(url, "harness_launcher_up") == [0]
        assert values(url, 'sum(harness_phase{phase!="down"})') == [0]
        assert set(values(url, "harness_rank_up")) == {0}
        beside.signal(signal.SIGTERM)
        assert beside.wait() == 0

        second = launched(job, port)
        awaited(
            holds(url, f"harness_manual_interventions_total == 1 and on() {at_work}"), "the second"
        )
        second.signal(signal.SIGTERM)
        assert second.wait() == 75

        after = job.zygote.launch(["export", "run", "--port", "0"], job.folder)
        awaited(holds(url, 'harness_phase{phase="finished"} == 1'), "the end")
        assert prometheus.falls(url, "10m") == []
        entries = job.entries()
        elapsed_s = (entries[-1].at_ns - entries[0].at_ns) / 1e9
        assert values(url, "sum(harness_state_seconds_total)") == [pytest.approx(elapsed_s)]
        assert seen(url) == known, "no restart makes a series"
        checked_by_promtool(job.folder, run_dir)
        after.signal(signal.SIGTERM)
        assert after.wait() == 0


def checked_by_promtool(folder: Path, run_dir: RunDir) -> None:
    """What is really scraped names every metric of the table, and `promtool` finds no fault in it."""
    (group,) = json.loads(run_dir.exporter.read_text())
    with urlopen(f"http://{group['targets'][0]}/metrics", timeout=30) as answer:
        text = answer.read()
    check = ["promtool", "check", "metrics"]
    checked = subprocess.run(check, input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
    told = {line.split()[2] for line in text.decode().splitlines() if line.startswith("# TYPE")}
    assert told == set(FAMILIES)
