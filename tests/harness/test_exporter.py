import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

import pytest

from harness.exporter import Exporter
from harness.rundir import RunDir
from tests import prometheus
from tests.harness import stories
from tests.waiting import until

DEADLINE_S = 20.0


def fetched(exporter: Exporter, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def refused(exporter: Exporter, path: str = "/metrics") -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as raised:
        fetched(exporter, path)
    with raised.value as answer:
        return answer.code, answer.read().decode()


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *command], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_a_scrape_over_http_says_what_the_log_says(tmp_path):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    with Exporter(run_dir, port=0) as exporter:
        text = fetched(exporter)
    assert 'harness_goodput_ratio{job_name="run",run_id="r1"} 0.375' in text


def test_each_scrape_reads_what_is_new(tmp_path):
    story = stories.KILLED_ONCE
    run_dir = stories.write(tmp_path / "run", [line for line in story if line[0] <= 1900])
    with Exporter(run_dir, port=0) as exporter:
        assert 'harness_step{job_name="run",run_id="r1"} 2.0' in fetched(exporter)
        stories.add(run_dir, [line for line in story if line[0] > 1900])
        assert 'harness_step{job_name="run",run_id="r1"} 4.0' in fetched(exporter)


def test_where_metrics_are_served_stands_in_the_run_directory_while_they_are(tmp_path):
    run_dir = stories.write(tmp_path / "run", ())
    with Exporter(run_dir, port=0) as exporter:
        groups = json.loads(run_dir.exporter.read_text())
        assert groups == [
            {
                "targets": [f"127.0.0.1:{exporter.port}"],
                "labels": {
                    "__scheme__": "http",
                    "instance": f"{socket.gethostname()}:{run_dir.path}",
                    "__param_run_dir": str(run_dir.path),
                    "__meta_harness_schema": "1",
                    "__meta_harness_run_dir": str(run_dir.path),
                    "__meta_harness_pid": str(os.getpid()),
                },
            }
        ]
    assert not run_dir.exporter.exists()


def test_an_exporter_that_leaves_does_not_hide_the_one_that_took_over(tmp_path):
    run_dir = stories.write(tmp_path / "run", ())
    with ExitStack() as later:
        with Exporter(run_dir, port=0):
            second = later.enter_context(Exporter(run_dir, port=0))
        assert json.loads(run_dir.exporter.read_text())[0]["targets"] == [second.target]
    assert not run_dir.exporter.exists()


def test_a_port_that_is_taken_ends_nothing(tmp_path, capsys):
    run_dir = stories.write(tmp_path / "run", ())
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with Exporter(run_dir, port=taken) as exporter:
            assert exporter.port != taken
            assert fetched(exporter)
    said = f"port {taken} is taken; metrics are served on port {exporter.port} instead"
    assert said in capsys.readouterr().err


def test_a_scrape_that_means_another_run_is_told_so(tmp_path):
    run_dir = stories.write(tmp_path / "run\udcff &", stories.KILLED_ONCE)
    with Exporter(run_dir, port=0) as exporter:
        (group,) = json.loads(run_dir.exporter.read_text())
        meant = group["labels"]["__param_run_dir"]
        assert "harness_goodput_ratio" in fetched(
            exporter, f"/metrics?{urlencode({'run_dir': meant})}"
        )
        status, body = refused(exporter, "/metrics?run_dir=/another")
    assert (status, body) == (404, f"this is {meant}; /another is not served here\n")


@prometheus.needs_prometheus
def test_runs_that_want_the_same_port_are_told_apart_and_sum_up(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    runs = [stories.write(tmp_path / name, stories.KILLED_ONCE) for name in ("one", "two", "dead")]
    files = [run_dir.exporter for run_dir in runs]
    with Exporter(runs[2], port=port) as orphan:
        orphan.orphan()  # what it leaves names the port that the next one takes
    with (
        Exporter(runs[0], port=port) as first,
        Exporter(runs[1], port=port) as second,
        prometheus.serving(tmp_path, files) as url,
    ):
        assert first.port == port != second.port
        prometheus.awaited(prometheus.holds(url, "count(up == 1) == 2"), "both")
        prometheus.awaited(prometheus.holds(url, 'up{instance=~".*dead"} == 0'), "the dead one")
        assert prometheus.values(url, "sum(harness_steps_total)") == [10]
        assert prometheus.values(url, "sum(harness_state_seconds_total)") == pytest.approx([5.6])


def test_a_scrape_that_fails_is_answered_said_and_survived(tmp_path, capsys):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    run_dir.settings.mkdir()
    with Exporter(run_dir, port=0) as exporter:
        status, body = refused(exporter)
        assert (status, body.split(":")[0]) == (500, "scrape failed")
        assert "scrape failed: IsADirectoryError" in capsys.readouterr().err
        run_dir.settings.rmdir()
        assert "harness_goodput_ratio" in fetched(exporter)


def test_other_paths_are_told_where_the_metrics_are(tmp_path):
    with Exporter(stories.write(tmp_path / "run", ()), port=0) as exporter:
        assert refused(exporter, "/nowhere") == (404, "here is only /, /state.json, /metrics\n")


def test_the_page_and_its_state_lie_beside_the_metrics(tmp_path):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    with Exporter(run_dir, port=0) as exporter:
        assert fetched(exporter, "/").startswith("<!doctype html>")
        state = json.loads(fetched(exporter, "/state.json?window_s=60"))
    assert (state["run"]["name"], state["goodput"]["ratio"]) == ("run", 0.375)
    assert state["strip"]["window_s"] == 60


def test_head_is_answered_like_get_but_without_the_body(tmp_path):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    with Exporter(run_dir, port=0) as exporter:
        whole = len(fetched(exporter).encode())
        connection = HTTPConnection("127.0.0.1", exporter.port, timeout=10)
        with closing(connection):
            connection.request("HEAD", "/metrics")
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"")
            assert answer.headers["Content-Length"] == str(whole)
            assert answer.headers["Cache-Control"] == "no-store"


def test_a_run_that_may_only_be_read_is_served_all_the_same(tmp_path, capsys):
    run_dir = RunDir.at(tmp_path / "gone")
    with Exporter(run_dir, port=0) as exporter:
        assert "harness_launcher_up" in fetched(exporter)
    assert "is not written down" in capsys.readouterr().err


def test_no_counter_falls_when_the_exporter_is_started_again(tmp_path):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    with Exporter(run_dir, port=0) as exporter:
        before = fetched(exporter)
    assert run_dir.fold.exists()
    with Exporter(run_dir, port=0) as exporter:
        assert fetched(exporter) == before


def test_the_command_serves_until_sigterm_and_leaves_nothing_behind(tmp_path):
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    with started("-m", "harness", "export", str(run_dir.path), "--port", "0") as process:
        until(run_dir.exporter.exists, "serving")
        (target,) = json.loads(run_dir.exporter.read_text())[0]["targets"]
        with urllib.request.urlopen(f"http://{target}/metrics", timeout=10) as answer:
            assert b"harness_goodput_ratio" in answer.read()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    where = f"at http://{target}/metrics, a page of it at http://{target}/"
    assert said == f"harness export: metrics of {run_dir.path} {where}\n"
    assert not run_dir.exporter.exists()


PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-m", "harness", "export", sys.argv[1], "--port", "0", "--with-parent"])
time.sleep(600)
"""


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether the process was sent the signal and leaves it where it is."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(status.partition("ShdPnd:")[2].split()[0], 16)
    return bool(mask & 1 << number - 1)


def test_with_its_parent_it_dies_however_that_dies(tmp_path):
    run_dir = stories.write(tmp_path / "run", ())
    script = Path(tmp_path / "parent.py")
    script.write_text(PARENT)
    with started(str(script), str(run_dir.path)) as parent:
        until(run_dir.exporter.exists, "serving")
        child = int(json.loads(run_dir.exporter.read_text())[0]["labels"]["__meta_harness_pid"])
        os.kill(child, signal.SIGINT)  # what a terminal sends to both is the parent's to judge
        until(lambda: is_pending(child, signal.SIGINT), "being left alone by SIGINT")
        parent.kill()
        until(lambda: not Path(f"/proc/{child}").exists(), "the exporter's death")
    assert run_dir.exporter.exists(), "nobody answers there, which an alert is about"
