"""Serves a run's metrics over HTTP, and a page of it for people, and says in the run directory where.

A port that is taken, a scrape that fails or a run that is half written never ends anything: another
port is taken, the scrape is answered with status 500 and a line on stderr, what is there is served.
"""

import errno
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from harness.access import Access, read
from harness.collector import RunCollector
from harness.metrics import USUAL_PORT
from harness.page import serving
from harness.page.document import document
from harness.parent import die_with
from harness.replace import replace_file
from harness.rundir import RunDir
from harness.server import OPEN, TEXT, Answer, Asked, Routes, Server, mistakes, say

SCHEMA = 1
PATH = "/metrics"
MEANT = "run_dir"
"""Parameter of a scrape: which run it means. Behind an address that a dead exporter left there may be another's."""


class Exporter:
    """An HTTP server in a thread of its own; what it says is folded when it is asked."""

    def __init__(
        self,
        run_dir: RunDir,
        host: str = "127.0.0.1",
        port: int | None = None,
        access: Access = OPEN,
    ) -> None:
        self._collector = RunCollector(run_dir)
        self._run_dir = run_dir
        self._is_orphaned = False
        self._server = _listening(host, port, _routes(self._collector, run_dir), access)
        self.port: int = self._server.server_address[1]
        self.target = _target(host, self.port)
        self.scheme = "http" if access.tls is None else "https"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        self._entry = _discovery(self._run_dir, self.target, self.scheme)
        try:
            replace_file(self._run_dir.exporter, self._entry.encode())
        except OSError as error:  # a run that may only be read can still be served
            say(f"where metrics are served is not written down: {error}")
        return self

    def orphan(self) -> None:
        """Nobody leads the run any more: whoever scrapes it shall see that nobody answers, not that it is gone."""
        self._is_orphaned = True

    def __exit__(self, *exception: object) -> None:
        ours = _found(self._run_dir) == self._entry  # else another exporter has taken over the file
        if ours and not self._is_orphaned:
            self._run_dir.exporter.unlink(missing_ok=True)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._collector.close()


def serve(
    run_dir: RunDir,
    host: str = "127.0.0.1",
    port: int | None = None,
    access: Path | None = None,
    with_parent: bool = False,
) -> int:
    """Serve until SIGTERM or SIGINT and return the exit status.

    With `with_parent` a SIGINT is the parent's to judge: a terminal sends it to both.
    """
    # Blocked before any thread exists, so that none of them is interrupted and `sigwait` gets all.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    parent = os.getppid()
    if with_parent:
        die_with(parent, signal.SIGTERM)
    for mistake in (wrong := mistakes(host, port)):
        say(mistake)
    if wrong:
        return 2
    try:
        exporter = Exporter(run_dir, host, port, OPEN if access is None else read(access))
    except ValueError as error:
        say(str(error))
        return 2
    except OSError as error:
        say(f"cannot serve metrics on {host}, port {_wanted(port)}: {error}")
        return 1
    with exporter:
        root = f"{exporter.scheme}://{exporter.target}"
        say(f"metrics of {run_dir.path} at {root}{PATH}, a page of it at {root}{serving.PAGE}")
        signal.sigwait({signal.SIGTERM} if with_parent else {signal.SIGTERM, signal.SIGINT})
        if with_parent and os.getppid() != parent:
            exporter.orphan()
            say(f"the launcher died; {run_dir.exporter} stays, so that this is noticed")
    return 0


# ── what is served ──────────────────────────────────────────────────────────────────────────────


def _listening(host: str, port: int | None, routes: Routes, access: Access) -> Server:
    wanted = _wanted(port)
    try:
        return Server(host, wanted, routes, access)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
    server = Server(host, 0, routes, access)
    say(f"port {wanted} is taken; metrics are served on port {server.server_address[1]} instead")
    return server


def _wanted(port: int | None) -> int:
    return USUAL_PORT if port is None else port


def _routes(collector: RunCollector, run_dir: RunDir) -> Routes:
    """The page at the root, the state that it shows, and the metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)

    def page(_: Asked) -> Answer:
        headers = {"Content-Security-Policy": serving.policy()}
        return Answer(serving.HTML, serving.page(), headers)

    def state(asked: Asked) -> Answer:
        window_s = serving.window_of(asked.query)
        told = collector.seen(lambda now: document(now, time.time_ns(), window_s))
        return Answer(serving.JSON, serving.encoded(told))

    def scraped(asked: Asked) -> Answer:
        ours = _name(run_dir)
        meant = parse_qs(asked.query, errors="replace").get(MEANT, [ours])
        if meant != [ours]:
            line = f"this is {ours}; {meant[0]} is not served here\n"
            return Answer(TEXT, line.encode(errors="replace"), status=404)
        encode, content_type = choose_encoder(asked.accept)
        return Answer(content_type, encode(registry))

    return {serving.PAGE: page, serving.STATE: state, PATH: scraped}


# ── where it is ─────────────────────────────────────────────────────────────────────────────────


def _target(host: str, port: int) -> str:
    """`host:port` for whoever scrapes."""
    name = socket.gethostname() if host in ("", "0.0.0.0", "::") else host  # noqa: S104 - asked for
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def _discovery(run_dir: RunDir, target: str, scheme: str) -> str:
    """A `file_sd` group. Its labels are meta labels: others would clash with those of the metrics.

    An `instance` is named, so that an exporter that comes back on another port is the same to Prometheus.
    """
    labels = {
        "__scheme__": scheme,
        "instance": f"{socket.gethostname()}:{run_dir.path}",
        f"__param_{MEANT}": _name(run_dir),
        "__meta_harness_schema": str(SCHEMA),
        "__meta_harness_run_dir": str(run_dir.path),
        "__meta_harness_pid": str(os.getpid()),
    }
    return json.dumps([{"targets": [target], "labels": labels}]) + "\n"


def _name(run_dir: RunDir) -> str:
    """Its path as text that comes through a URL as it is, whatever bytes it has."""
    return os.fsencode(run_dir.path).decode(errors="replace")


def _found(run_dir: RunDir) -> str | None:
    try:
        return run_dir.exporter.read_text()
    except (OSError, ValueError):  # a folder, bytes that are no text: nothing that we wrote
        return None
