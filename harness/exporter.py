"""Serves a run's metrics over HTTP, and says in the run directory where.

A port that is taken, a scrape that fails or a run that is half written never ends anything: another
port is taken, the scrape is answered with status 500 and a line on stderr, what is there is served.
"""

import errno
import json
import os
import signal
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Self

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from harness.collector import RunCollector
from harness.parent import die_with
from harness.replace import replace_file
from harness.rundir import RunDir

SCHEMA = 1
USUAL_PORT = 9464
"""Where OpenTelemetry's Prometheus exporters listen by default; ours takes it if it is free."""
SLOW_CLIENT_S = 10.0
PATH = "/metrics"
TEXT = "text/plain; charset=utf-8"


class Exporter:
    """An HTTP server in a thread of its own; what it says is folded when it is asked."""

    def __init__(self, run_dir: RunDir, host: str = "127.0.0.1", port: int | None = None) -> None:
        registry = CollectorRegistry(auto_describe=False)
        self._collector = RunCollector(run_dir)
        registry.register(self._collector)
        self._run_dir = run_dir
        self._server = _listening(host, port, {PATH: _metrics(registry)})
        self.port: int = self._server.server_address[1]
        self.target = _target(host, self.port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        self._entry = _discovery(self._run_dir, self.target)
        try:
            replace_file(self._run_dir.exporter, self._entry.encode())
        except OSError as error:  # a run that may only be read can still be served
            _say(f"where metrics are served is not written down: {error}")
        return self

    def __exit__(self, *exception: object) -> None:
        if _found(self._run_dir) == self._entry:  # else another exporter has taken over the file
            self._run_dir.exporter.unlink(missing_ok=True)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._collector.close()


def serve(
    run_dir: RunDir, host: str = "127.0.0.1", port: int | None = None, with_parent: bool = False
) -> int:
    """Serve until SIGTERM or SIGINT and return the exit status.

    With `with_parent` a SIGINT is the parent's to judge: a terminal sends it to both.
    """
    # Blocked before any thread exists, so that none of them is interrupted and `sigwait` gets all.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    if with_parent:
        die_with(os.getppid(), signal.SIGTERM)
    try:
        exporter = Exporter(run_dir, host, port)
    except OSError as error:
        _say(f"cannot serve metrics on {host}: {error}")
        return 1
    with exporter:
        _say(f"metrics of {run_dir.path} at http://{exporter.target}{PATH}")
        signal.sigwait({signal.SIGTERM} if with_parent else {signal.SIGTERM, signal.SIGINT})
    return 0


# ── the server ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for one of the paths."""

    accept: str
    query: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back, with status 200."""

    content_type: str
    body: bytes


Routes = Mapping[str, Callable[[Asked], Answer]]


class _Server(socketserver.ThreadingTCPServer):
    """Unlike `http.server.HTTPServer` it asks no name server for its own name."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, routes: Routes) -> None:
        self.routes = routes
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    """Answers whoever asks for one of the server's paths."""

    server: _Server
    timeout = SLOW_CLIENT_S

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        route = self.server.routes.get(path)
        if route is None:
            self._say_only(404, f"here is only {', '.join(self.server.routes)}")
            return
        try:
            answer = route(Asked(self.headers.get("Accept", ""), query))
        except Exception as error:  # noqa: BLE001 - whatever the log holds, the next scrape is answered
            line = f"scrape failed: {type(error).__name__}: {error}"
            _say(line)
            self._say_only(500, line)
            return
        self._send(200, answer)

    do_HEAD = do_GET  # noqa: N815 - the base's names

    def _say_only(self, status: int, line: str) -> None:
        self._send(status, Answer(TEXT, f"{line}\n".encode()))

    def _send(self, status: int, answer: Answer) -> None:
        self.send_response(status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's names
        """A scrape a second is nothing to write down."""


def _listening(host: str, port: int | None, routes: Routes) -> _Server:
    wanted = USUAL_PORT if port is None else port
    try:
        return _Server(host, wanted, routes)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
    server = _Server(host, 0, routes)
    _say(f"port {wanted} is taken; metrics are served on port {server.server_address[1]} instead")
    return server


def _metrics(registry: CollectorRegistry) -> Callable[[Asked], Answer]:
    """Every family, in the form that is accepted."""

    def scraped(asked: Asked) -> Answer:
        encode, content_type = choose_encoder(asked.accept)
        return Answer(content_type, encode(registry))

    return scraped


# ── where it is ─────────────────────────────────────────────────────────────────────────────────


def _target(host: str, port: int) -> str:
    """`host:port` for whoever scrapes."""
    name = socket.gethostname() if host in ("", "0.0.0.0", "::") else host  # noqa: S104 - asked for
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def _discovery(run_dir: RunDir, target: str) -> str:
    """A `file_sd` group. Its labels are meta labels: others would clash with those of the metrics."""
    labels = {
        "__meta_harness_schema": str(SCHEMA),
        "__meta_harness_run_dir": str(run_dir.path),
        "__meta_harness_pid": str(os.getpid()),
    }
    return json.dumps([{"targets": [target], "labels": labels}]) + "\n"


def _found(run_dir: RunDir) -> str | None:
    try:
        return run_dir.exporter.read_text()
    except (OSError, ValueError):  # a folder, bytes that are no text: nothing that we wrote
        return None


def _say(line: str) -> None:
    print(f"harness export: {line}", file=sys.stderr, flush=True)  # noqa: T201
