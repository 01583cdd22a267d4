"""What every kind of storage must do: one contract, on real stores on loopback and on fsspec's memory."""

import errno
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fsspec.core import url_to_fs
from fsspec.implementations.memory import MemoryFileSystem

from faultinject import tapefile
from faultinject.tape import Tape
from harness import settings
from harness.checkpoint import remote, retention, uploads
from harness.checkpoint.lineage import Departure
from harness.checkpoint.manifest import COMMIT, Place, record
from harness.checkpoint.remote import innermost
from harness.checkpoint.store import Store, StoreError
from harness.rundir import RunDir

REAL = ["file", "s3", "gs", "abfs", "flat", "chaos::file", "chaos::s3"]
KINDS = [*REAL, "memory"]


@pytest.fixture
def armed(tmp_path, monkeypatch):
    """This process, and those it starts, belong to an armed run whose plan is empty."""
    run_dir = RunDir.at(tmp_path / "armed")
    run_dir.create()
    settings.write(run_dir.settings, settings.Record("run", ("train.py",), {}, {}, True))
    tapefile.write(run_dir.tape, Tape(0, "plan", 1, (), ()))
    monkeypatch.setenv("HARNESS_RUN_DIR", str(run_dir.path))


@pytest.fixture(params=KINDS)
def url(request):
    """A URL of a kind of storage under which there is nothing yet."""
    return named(request, request.param)


def named(request: pytest.FixtureRequest, kind: str) -> str:
    """The same, by its kind."""
    if kind == "file":
        return f"file://{request.getfixturevalue('tmp_path')}/run"
    if kind == "memory":
        return f"memory://{uuid.uuid4().hex}"
    if kind.startswith("chaos::"):
        request.getfixturevalue("armed")
        return f"chaos::{named(request, kind.removeprefix('chaos::'))}"
    found = request.getfixturevalue(f"{kind}_url")
    return str(found("flat") if kind == "flat" else found)


def opened(url: str, run_id: str = "run", **options) -> Store:
    """A store as another process would open it, with a file system of its own."""
    if url.startswith("memory://"):  # refused for a run: only this test may have it
        files, root = url_to_fs(url)
        store = Store(files, root, run_id, **options)
        store.adopt()
        return store
    store = Store.open(url, run_id, **options)
    if url.startswith("chaos::"):  # it is a new one each time
        return store
    files = type(store.files)(**{**store.files.storage_options, "skip_instance_cache": True})
    return replace(store, files=files)


def unfinished(store: Store) -> list[str]:
    """Names that something was begun to be written under, and that it never got."""
    names: list[str] = []

    def spare(name: str, _: float) -> bool:
        names.append(name)
        return False

    store.sweep(spare)
    return [name for name in names if not name.endswith("/")]


@pytest.fixture
def store(url):
    return opened(url, timeout_s=30.0)


@pytest.fixture
def small_parts(monkeypatch):
    """Objects are cut into parts where they would otherwise be too small for it."""
    monkeypatch.setattr(remote, "_PART_BYTES", 5 << 20)  # S3 takes no smaller ones


def test_what_is_written_is_read_and_listed_at_once_by_everyone(store, url):
    other = opened(url)
    assert other.inventory() == {"run.json": 79}

    assert store.write("step/f", [b"abc", memoryview(b"defg")]) == record(b"abcdefg")

    assert store.read("step/f") == other.read("step/f") == b"abcdefg"
    assert other.inventory() == {"run.json": 79, "step/f": 7}
    assert (other.size("step/f"), other.size("step/g")) == (7, None)
    store.delete("step/f")
    assert other.inventory() == {"run.json": 79}
    with pytest.raises(FileNotFoundError):
        other.read("step/f")


def test_of_many_that_create_a_file_at_once_one_wins_and_its_content_stays(store):
    won: list[bytes] = []

    def create(content: bytes) -> None:
        if store.create("attempts/x", content):
            won.append(content)

    creators = [threading.Thread(target=create, args=(b"%d" % n,)) for n in range(6)]
    for creator in creators:
        creator.start()
    for creator in creators:
        creator.join()

    assert [store.read("attempts/x")] == won
    assert not store.create("attempts/x", b"late")
    assert store.create("attempts/x", won[0])  # what is there is what was to be there


@pytest.mark.parametrize("size", [0, 100, 12 << 20])
@pytest.mark.parametrize("before", [None, b"the old bytes"])
def test_an_exception_while_writing_leaves_the_old_bytes_or_none(store, small_parts, before, size):
    def chunks() -> Iterator[bytes]:
        yield bytes(size)
        raise OSError(errno.EIO, "broken")  # were it the storage's, it would be tried again

    if before is not None:
        store.write("step/f", [before])
    listed = store.inventory()

    with pytest.raises(OSError, match="broken"):
        store.write("step/f", chunks())

    assert store.inventory() == listed
    assert before is None or store.read("step/f") == before
    assert unfinished(store) == []


KILLED = """
import os, signal, sys
from harness.checkpoint import remote, retention
from harness.checkpoint.store import Store
remote._PART_BYTES = 5 << 20
store = Store.open(sys.argv[1], "run")
def chunks():
    yield bytes(12 << 20)
    os.kill(os.getpid(), signal.SIGKILL)
store.write("step-00000010-1/shard", chunks())
"""


@pytest.mark.parametrize("before", [None, b"the old bytes"])
@pytest.mark.parametrize("kind", REAL)
def test_a_writer_that_is_killed_leaves_the_old_bytes_or_none_and_is_swept(
    kind, before, request, tmp_path
):
    url = named(request, kind)
    store, name = opened(url), "step-00000010-1/shard"
    if before is not None:
        store.write(name, [before])
    listed = store.inventory()

    killed = subprocess.run([sys.executable, "-c", KILLED, url], check=False, timeout=60)

    assert killed.returncode == -signal.SIGKILL
    assert store.inventory() == listed
    assert before is None or store.read(name) == before
    assert unfinished(store) == (
        [name] if kind.endswith(("file", "s3")) else []
    )  # others list none
    retention.sweep(store, 2)
    assert unfinished(store) == []
    assert store.inventory() == {"run.json": 79}


def test_a_large_file_comes_back_whole_in_parts_and_in_order(store, small_parts):
    content = bytes(range(256)) * (68 << 10) + b"and a bit more"
    written = store.write("step/f", [content[: 11 << 20], content[11 << 20 :]])
    found = bytearray(len(content))

    def sink(begin: int, portion: memoryview) -> None:
        found[begin : begin + len(portion)] = portion

    assert written == record(content)
    assert store.pour("step/f", len(content), sink) == written
    assert found == content
    assert store.pour("step/f", len(content) - 1).size == len(content)
    assert store.pour("step/f", len(content) + 5).size == len(content)


def test_a_place_is_used_once_and_goes_commit_first(store, url):
    place, other = Place(10000, 1), Place(9900, 12)
    for one in (place, other):
        store.begin(one)
        store.write(f"{one.name}/shard", [b"x"])
        store.create(f"{one.name}/{COMMIT}", b"{}")
    left: list[list[str]] = []

    assert store.places() == [other, place]
    with pytest.raises(FileExistsError):
        opened(url).begin(place)
    store.remove(place, lambda: left.append(sorted(store.listing(place.name))))

    assert left == [[f"{place.name}/shard"], []]
    assert store.places() == [other]
    assert store.is_committed(other)
    store.begin(place)


def test_attempts_and_lineage_are_the_same_for_everyone(store, url):
    other = opened(url)
    assert [store.claim_attempt(), other.claim_attempt(), store.claim_attempt()] == [1, 2, 3]
    store.record_lineage(1, None, 0)
    with pytest.raises(StoreError, match="attempt 1 has chosen its state already"):
        other.record_lineage(1, None, 0)
    assert other.departures() == {1: Departure(None, 0)}
    other.record_lineage(3, 1, 50)
    assert store.chain().limits == {3: None, 1: 50}


def test_a_place_of_another_run_is_refused(store, url):
    with pytest.raises(StoreError, match="holds the checkpoints of run 'run', and this is run"):
        opened(url, "another")
    assert store.inventory() == {"run.json": 79}


def test_there_are_no_objects_but_those_that_were_written(store):
    """A small object costs as much as a large one on some stores; a folder needs none."""
    store.claim_attempt()
    store.write("step/deep", [b"x"])

    found = store.files.find(store.root, withdirs=False)
    assert sorted(path.removeprefix(f"{store.root}/") for path in found) == [
        "attempts/00001.claim",
        "run.json",
        "step/deep",
    ]
    assert not Path(f"{store.root.split('/')[0]}:").exists()


def test_an_upload_whose_writer_was_killed_is_swept_and_no_one_else_s(s3_url, small_parts):
    store, stranger = opened(f"{s3_url}/run"), opened(f"{s3_url}/run-2", "run-2")
    for one in (store, stranger):
        for place in (Place(10, 1), Place(20, 2)):
            file = one.files.open(one.path(place.name, "shard"), "wb", block_size=5 << 20)
            file.write(bytes(6 << 20))
            file.forced = file.closed = True  # killed: nobody completes or aborts it

    store.sweep(lambda name, _: name.startswith(Place(10, 1).name))

    assert unfinished(store) == [f"{Place(20, 2).name}/shard"]
    assert sorted(unfinished(stranger)) == [
        f"{Place(10, 1).name}/shard",
        f"{Place(20, 2).name}/shard",
    ]
    assert store.inventory() == {"run.json": 79}


def test_what_is_wrapped_around_a_storage_is_seen_through(store):
    assert isinstance(innermost(store.files), MemoryFileSystem) == (
        "memory" in store.files.protocol
    )


def test_the_parts_of_the_largest_object_are_few_enough():
    assert remote.part_bytes(2_000_000_000) == 16 << 20
    for largest_bytes in (100 << 30, 5 << 40):
        part_bytes = remote.part_bytes(largest_bytes)
        assert largest_bytes / part_bytes <= 10_000 / 2
        assert part_bytes % (1 << 20) == 0


@pytest.mark.parametrize("sizes", [[], [0], [7], [8], [9], [3, 5], [3, 6, 20], [40], [8, 0, 8]])
def test_parts_are_of_one_size_but_for_the_last(sizes):
    content = bytes(range(sum(sizes)))
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    chunks = [memoryview(content)[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    parts = list(uploads.cut(iter(chunks), 8))

    assert b"".join(parts) == content
    assert [len(part) for part in parts[:-1]] == [8] * (len(parts) - 1)
    assert all(1 <= len(part) <= 8 for part in parts)
