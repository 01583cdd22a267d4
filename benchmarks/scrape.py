"""What a scrape costs with eight ranks and a million events behind it, and whether the exporter grows.

Run `python -m benchmarks.scrape [events]`. The exporter is a process of its own, asked over HTTP as Prometheus
asks, each time after ten more events. Beside it, asked the same way: `prometheus_client`'s own server in its
multiprocess mode, with as many series in files, one a rank, which know the present alone.
"""

import fcntl
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.fold import LongRun
from benchmarks.machine import machine
from harness.rundir import RunDir
from harness.slots import SlotWriter

RANKS = 8
SCRAPES = 300
WANTED_MS = 20.0


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        run = LongRun(RunDir.at(Path(folder) / "run"), RANKS)
        print(f"writing a log of {count:,} events of {RANKS} ranks …", flush=True)
        for done in range(0, count, 20_000):
            run.write(min(20_000, count - done))
        stack.enter_context(_alive(run.run_dir))
        process, url = stack.enter_context(_exporting(run.run_dir))
        first_s = _timed(lambda: _scraped(url))
        print(f"the first scrape, which folds all of that: {first_s:.1f} s")
        for _ in range(20):  # memory settles
            run.write(10)
            series = _scraped(url)
        before_kb = _resident_kb(process.pid)
        cpu_before_s, times_s = _cpu_s(process.pid), []
        for _ in range(SCRAPES):
            run.write(10)
            times_s.append(_timed(lambda: _scraped(url)))
        cpu_ms = (_cpu_s(process.pid) - cpu_before_s) / SCRAPES * 1e3
        grown_kb = _resident_kb(process.pid) - before_kb
        ours_ms = statistics.median(times_s) * 1e3
        worst_ms = sorted(times_s)[int(0.99 * SCRAPES)] * 1e3
        print(f"{series} series: {ours_ms:.2f} ms, {worst_ms:.2f} at the 99th percentile")
        print(f"of processor time in the exporter: {cpu_ms:.2f} ms")
        print(f"memory: {before_kb / 1024:.0f} MB, {grown_kb:+} kB after {SCRAPES} scrapes")
        other_ms = _multiprocess_ms(series)
        print(f"prometheus_client's multiprocess mode, as many series over HTTP: {other_ms:.2f} ms")
    print(
        json.dumps(
            {
                "benchmark": "scrape",
                "ours": round(ours_ms, 2),
                "other": {"prometheus_client multiprocess": round(other_ms, 2)},
                "unit": f"ms for a scrape of {series} series with {count} events behind it",
                "ratio": {"ours / prometheus_client multiprocess": round(ours_ms / other_ms, 2)},
                "cpu_ms": round(cpu_ms, 2),
                "worst_ms": round(worst_ms, 2),
                "wanted_ms": WANTED_MS,
                "resident_mb": round(before_kb / 1024, 1),
                "grown_kb": grown_kb,
                "machine": machine(),
            }
        )
    )


@contextmanager
def _alive(run_dir: RunDir) -> Iterator[None]:
    """As if the launcher and all ranks lived: they hold their locks and show their slots."""
    with ExitStack() as stack:
        for writer in ("launcher-0", *(f"rank-{rank}" for rank in range(RANKS))):
            file = stack.enter_context(run_dir.event_file(writer).open("ab"))
            fcntl.flock(file, fcntl.LOCK_EX)
        for rank in range(RANKS):
            slot = stack.enter_context(SlotWriter(run_dir.slot(rank), attempt=1))
            slot.update(step=1, own_ns=150_000_000 + rank)
        yield


@contextmanager
def _exporting(run_dir: RunDir) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    command = [sys.executable, "-m", "harness", "export", str(run_dir.path), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not run_dir.exporter.exists():
            assert process.poll() is None, "the exporter ended"
            time.sleep(0.05)
        yield process, f"http://{json.loads(run_dir.exporter.read_text())[0]['targets'][0]}/metrics"
    finally:
        process.terminate()
        process.wait()


def _scraped(url: str) -> int:
    """The number of series."""
    with urllib.request.urlopen(url, timeout=600) as answer:
        return sum(not line.startswith(b"#") for line in answer.read().splitlines())


def _timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def _resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def _cpu_s(pid: int) -> float:
    """Processor time so far, in user and kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _multiprocess_ms(series: int) -> float:
    """The same number of series, an eighth of them in each of eight processes' files."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        spawn = multiprocessing.get_context("spawn")
        ranks = [spawn.Process(target=_write_series, args=(series // RANKS,)) for _ in range(RANKS)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        ours, theirs = spawn.Pipe()
        server = spawn.Process(target=_serve_series, args=(theirs,))
        server.start()
        theirs.close()  # so that a server that dies is noticed
        try:
            url = f"http://127.0.0.1:{ours.recv()}/metrics"
            assert _scraped(url) == series // RANKS * RANKS
            return statistics.median(_timed(lambda: _scraped(url)) for _ in range(SCRAPES)) * 1e3
        finally:
            server.terminate()
            server.join()


def _write_series(count: int) -> None:
    from prometheus_client import Gauge

    gauge = Gauge("series", "One of many.", ["place"], multiprocess_mode="all")
    for place in range(count):
        gauge.labels(str(place)).set(place)


def _serve_series(port: Connection) -> None:
    """Serve what is in the files; the port goes to whoever asks."""
    from prometheus_client import CollectorRegistry, multiprocess, start_http_server

    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    server, thread = start_http_server(0, "127.0.0.1", registry)
    port.send(server.server_port)
    thread.join()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
