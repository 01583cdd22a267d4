"""Storage that is slow to answer, busy, full, or does not answer at all."""

import errno
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest
from fsspec.implementations.local import LocalFileSystem

from harness.checkpoint import remote, uploads
from harness.checkpoint.manifest import record
from harness.checkpoint.store import Store
from tests.harness.checkpoint.world import FullDisk, Rank, Run

BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"

REFUSED = b"<Error><Code>AccessDenied</Code><Message>no more of it</Message></Error>"


class Way:
    """The way to a store over HTTP; `spoil` says what becomes of each request."""

    def __init__(self, target: str) -> None:
        self.target = urlsplit(target)
        self.spoil: Callable[[str, str], str] = lambda method, path: "pass"
        self.requests: list[tuple[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("", (Handler,), {"way": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Handler(BaseHTTPRequestHandler):
    way: "Way"
    protocol_version = "HTTP/1.1"

    def pass_on(self) -> None:
        self.way.requests.append((self.command, self.path))
        fate = self.way.spoil(self.command, self.path)
        body = self._body()
        if fate == "busy":
            self._answer(503, [], BUSY)
            return
        if fate == "refused":
            self._answer(403, [], REFUSED)
            return
        status, headers, content = self._asked(body)
        if fate == "answer lost":
            self._answer(500, [], b"")
        else:
            self._answer(status, headers, content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on  # noqa: N815

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _asked(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        assert self.way.target.hostname is not None
        link = http.client.HTTPConnection(self.way.target.hostname, self.way.target.port or 80)
        link.request(self.command, self.path, body, dict(self.headers))
        answer = link.getresponse()
        content = answer.read()
        link.close()
        return answer.status, answer.getheaders(), content

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response(status)
        own = ("content-length", "transfer-encoding", "connection", "date", "server")
        for name, value in headers:
            if name.lower() not in own:
                self.send_header(name, value)
        size = dict(headers).get("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", size or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def way(moto, s3_url, monkeypatch) -> Iterator[Way]:
    way = Way(moto.environ["FSSPEC_S3_ENDPOINT_URL"])
    monkeypatch.setenv("FSSPEC_S3_ENDPOINT_URL", way.url)
    import fsspec

    monkeypatch.setitem(
        fsspec.config.conf, "s3", {**fsspec.config.conf["s3"], "endpoint_url": way.url}
    )
    yield way
    way.close()


def test_a_busy_store_is_asked_again_until_it_answers(way, s3_url):
    store = Store.open(s3_url, "run")
    seen: dict[tuple[str, str], int] = {}

    def busy_twice(method: str, path: str) -> str:
        seen[method, path] = seen.get((method, path), 0) + 1
        return "busy" if seen[method, path] <= 2 else "pass"

    way.spoil = busy_twice

    assert store.write("step/f", [b"abc"]) == record(b"abc")
    assert store.read("step/f") == b"abc"
    assert store.create("attempts/x", b"one")
    assert sorted(store.inventory()) == ["attempts/x", "run.json", "step/f"]


def test_several_parts_of_one_object_are_on_their_way_at_once(way, s3_url, monkeypatch):
    monkeypatch.setattr(remote, "_PART_BYTES", 5 << 20)
    store, together = Store.open(s3_url, "run"), threading.Barrier(uploads.PARTS_AT_ONCE)

    def wait_for_others(method: str, path: str) -> str:
        if "partNumber=" in path:
            together.wait(30)
        return "pass"

    way.spoil = wait_for_others
    content = bytes(range(256)) * (4 * 5 << 12)  # four parts

    assert store.write("step/f", [content]) == record(content)
    assert store.pour("step/f", len(content)) == record(content)


def test_a_part_that_is_refused_takes_the_others_with_it(way, s3_url, monkeypatch):
    monkeypatch.setattr(remote, "_PART_BYTES", 5 << 20)
    store = Store.open(s3_url, "run")

    def refuse_third(method: str, path: str) -> str:
        return "refused" if "partNumber=3" in path else "pass"

    way.spoil = refuse_third
    with pytest.raises(OSError, match="no more of it"):
        store.write("step/f", [bytes(22 << 20)])

    way.spoil = lambda method, path: "pass"
    assert list(uploads.unfinished(store.files, store.root)) == []
    assert store.listing("step") == {}


def test_a_file_that_was_created_is_ours_although_the_answer_was_lost(way, s3_url):
    store = Store.open(s3_url, "run")
    lost: list[str] = []

    def lose_first(method: str, path: str) -> str:
        if method == "PUT" and not lost:
            lost.append(path)
            return "answer lost"
        return "pass"

    way.spoil = lose_first

    assert store.claim_attempt() == 1
    assert len(lost) == 1
    assert sum(method == "PUT" and path in lost for method, path in way.requests) >= 2
    assert Store.open(s3_url, "run").claim_attempt() == 2


def test_a_store_that_never_answers_is_an_error_in_time(monkeypatch, s3_url, moto):
    import fsspec

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        conf = {**fsspec.config.conf["s3"], "endpoint_url": url}
        monkeypatch.setitem(fsspec.config.conf, "s3", conf)
        began_s = time.monotonic()
        with pytest.raises(TimeoutError, match=r"did not answer for 0.5 s \(storage_timeout_s\)"):
            Store.open(s3_url, "run", timeout_s=0.5)
        assert time.monotonic() - began_s < 30


class HungDisk(LocalFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Hangs in the first write of a shard, for as long as the test lasts."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "wb" and "shard" in path:
            assert self.free.wait(60)
        return super()._open(path, mode)


def test_a_disk_that_hangs_is_a_failed_save_and_what_it_does_later_is_not_seen(tmp_path):
    run = Run(tmp_path / "checkpoints")
    run.commit(10, world_size=1)
    disk = HungDisk()

    def body(rank: Rank) -> bool:
        return rank.save(20)

    run.timeout_s = 0.5
    assert run.attempt(body, 1, files={0: disk}) == [False]
    disk.free.set()
    late = [thread for thread in threading.enumerate() if thread.name.startswith("storage-write")]
    assert late
    for thread in late:
        thread.join(20)

    assert run.steps() == [10]
    assert run.store().inventory().keys() == {
        name for name in run.store().inventory() if "step-00000020" not in name
    }
    assert not list(run.root.glob("step-00000020-*"))


def test_a_disk_that_errs_for_a_moment_costs_nothing(tmp_path):
    class Shaky(LocalFileSystem):  # type: ignore[misc]
        cachable = False
        failures = 2

        def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
            if type(self).failures:
                type(self).failures -= 1
                raise OSError(errno.EIO, "Input/output error", path)
            return super()._open(path, mode)

    store = replace(Store.open(f"file://{tmp_path}/run", "run"), files=Shaky())
    assert store.write("step/f", iter([b"abc", b"def"])) == record(b"abcdef")
    assert store.read("step/f") == b"abcdef"


@pytest.mark.parametrize("room", [0, 1, 7, 8, 9])
def test_a_full_disk_leaves_no_half_file_and_takes_nothing_from_a_whole_one(tmp_path, room):
    store = Store.open(f"file://{tmp_path}/run", "run")
    store.write("step/f", [b"the old bytes"])
    full = replace(store, files=FullDisk(room))

    if room < 8:
        with pytest.raises(OSError, match="No space left on device") as failure:
            full.write("step/f", [b"abcd", b"efgh"])
        assert failure.value.errno == errno.ENOSPC
    else:
        full.write("step/f", [b"abcd", b"efgh"])

    assert store.read("step/f") == (b"the old bytes" if room < 8 else b"abcdefgh")
    assert [path.name for path in (tmp_path / "run/step").iterdir()] == ["f"]
