"""A small HTTP server: a table of paths, GET and HEAD, and who may ask.

What is only for this machine is given to no website: a browser that was led here under a name of
someone else's (DNS rebinding) is refused, by the `Host` that it sends.
"""

import ipaddress
import socket
import socketserver
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from harness.access import Access

SLOW_CLIENT_S = 10.0
TEXT = "text/plain; charset=utf-8"
_LOCAL = ("localhost", "internal")
"""Names under these are nobody's on the internet."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for one of the paths."""

    accept: str
    query: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back."""

    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200


Routes = Mapping[str, Callable[[Asked], Answer]]
OPEN = Access()


class Server(socketserver.ThreadingTCPServer):
    """Unlike `http.server.HTTPServer` it asks no name server for its own name."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, routes: Routes, access: Access = OPEN) -> None:
        self.routes, self.access = routes, access
        self.is_private = is_loopback(host)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In a thread of the connection's own, so that a slow handshake holds up nobody else."""
        if self.access.tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(SLOW_CLIENT_S)
        with suppress(OSError), self.access.tls.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - the base's
        """Say what went wrong in one line; whoever asked and left before the answer is no news."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            say(f"a request failed: {type(error).__name__}: {error}")


class _Handler(BaseHTTPRequestHandler):
    """Answers whoever asks for one of the server's paths."""

    server: Server
    timeout = SLOW_CLIENT_S

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        route = self.server.routes.get(path)
        if self.server.is_private and not may_ask(self.headers.get("Host")):
            self._say_only(421, "this is served to this machine alone: ask for it as localhost")
        elif not self.server.access.admits(self.headers.get("Authorization")):
            challenge = {"WWW-Authenticate": 'Basic realm="harness", charset="UTF-8"'}
            self._say_only(401, "this is for those who have a name and a password", challenge)
        elif route is None:
            self._say_only(404, f"here is only {', '.join(self.server.routes)}")
        else:
            self._answer(route, Asked(self.headers.get("Accept", ""), query))

    do_HEAD = do_GET  # noqa: N815 - the base's names

    def do_POST(self) -> None:
        self._say_only(405, "this can only be read: GET or HEAD", {"Allow": "GET, HEAD"})

    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST  # noqa: N815

    def version_string(self) -> str:
        """Nobody needs to know more."""
        return "harness"

    def _answer(self, route: Callable[[Asked], Answer], asked: Asked) -> None:
        try:
            answer = route(asked)
        except Exception as error:  # noqa: BLE001 - whatever the log holds, the next scrape is answered
            line = f"scrape failed: {type(error).__name__}: {error}"
            say(line)
            self._say_only(500, line)
            return
        self._send(answer)

    def _say_only(self, status: int, line: str, headers: Mapping[str, str] | None = None) -> None:
        self._send(Answer(TEXT, f"{line}\n".encode(), headers or {}, status))

    def _send(self, answer: Answer) -> None:
        usual = {
            "Content-Type": answer.content_type,
            "Content-Length": str(len(answer.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
        }
        self.send_response(answer.status)
        for name, value in (usual | dict(answer.headers)).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's names
        """A scrape a second is nothing to write down."""


def mistakes(host: str, port: int | None, prefix: str = "--") -> list[str]:
    """A line for each flag that names no place to listen at; `prefix` begins their names."""
    found = []
    if not host:
        found.append(
            f"{prefix}host '' is no address: name one; 0.0.0.0 is all of this machine's, for anyone"
        )
    if port is not None and not 0 <= port < 1 << 16:
        found.append(f"{prefix}port {port} is no TCP port: it is 0 to 65535")
    return found


def is_loopback(host: str) -> bool:
    """Whether what listens on `host` is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def may_ask(host: str | None) -> bool:
    """Whether a request with this `Host` can be meant for this machine.

    An address is no name that could be led elsewhere, and a name without a dot, or under `.localhost`
    or `.internal`, is nobody's on the internet. Without a `Host` no browser asks.
    """
    if host is None:
        return True
    name = host.rpartition("]")[0].lstrip("[") or host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        labels = name.lower().rstrip(".").split(".")
        return len(labels) == 1 or labels[-1] in _LOCAL
    return True


def say(line: str) -> None:
    """Tell people on standard error."""
    with suppress(OSError):  # nobody listens, or the disk is full
        print(f"harness export: {line}", file=sys.stderr, flush=True)  # noqa: T201
