import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from email.message import Message
from http.client import HTTPConnection
from typing import Any

import pytest

from harness.server import TEXT, Answer, Server, is_loopback, may_ask


@contextmanager
def serving(host: str = "127.0.0.1") -> Iterator[int]:
    server = Server(host, 0, {"/": lambda asked: Answer(TEXT, asked.query.encode())})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def asked(
    port: int, method: str = "GET", path: str = "/", host: str = "localhost"
) -> tuple[int, str, Message]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request(method, path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers


def test_a_website_that_leads_its_own_name_here_is_given_nothing():
    with serving() as port:
        status, body, _ = asked(port, host=f"evil.example:{port}")
        assert (status, body) == (
            421,
            "this is served to this machine alone: ask for it as localhost\n",
        )
        assert asked(port, path="/?x=1", host=f"localhost:{port}")[:2] == (200, "x=1")


def test_what_is_served_to_the_network_may_be_asked_for_under_any_name():
    with serving("0.0.0.0") as port:
        assert asked(port, host="metrics.example")[0] == 200


@pytest.mark.parametrize(
    ("host", "may"),
    [
        ("localhost", True),
        ("LocalHost.:9464", True),
        ("127.0.0.1:9464", True),
        ("[::1]:9464", True),
        ("10.0.0.7", True),
        ("run.localhost:1", True),
        ("host.docker.internal:9464", True),
        ("node7:9464", True),
        (None, True),
        ("evil.example", False),
        ("127.0.0.1.evil.example:9464", False),
        ("localhost.evil.example", False),
    ],
)
def test_who_may_ask(host, may):
    assert may_ask(host) is may


def test_which_addresses_are_this_machine_s_alone():
    hosts = ("127.0.0.1", "127.1.2.3", "::1", "localhost", "0.0.0.0", "::", "", "10.0.0.1", "node7")
    assert [host for host in hosts if is_loopback(host)] == [
        "127.0.0.1",
        "127.1.2.3",
        "::1",
        "localhost",
    ]


def test_nothing_can_be_written():
    with serving() as port:
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            status, _, headers = asked(port, method)
            assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_answers_are_not_kept_nor_taken_for_something_else():
    with serving() as port:
        _, _, headers = asked(port)
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Server"] == "harness"


def test_whoever_leaves_before_the_answer_is_no_news(capsys):
    ended = threading.Event()
    body = b"x" * (1 << 24)  # more than a connection holds

    class Ended(Server):
        def shutdown_request(self, request: Any) -> None:
            super().shutdown_request(request)
            ended.set()

    server = Ended("127.0.0.1", 0, {"/": lambda asked: Answer(TEXT, body)})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    with closing(socket.create_connection(("127.0.0.1", server.server_address[1]))) as leaving:
        leaving.sendall(b"GET / HTTP/1.0\r\n\r\n")
        leaving.recv(1)
    assert ended.wait(20)
    server.shutdown()
    thread.join()
    server.server_close()
    assert capsys.readouterr().err == ""
