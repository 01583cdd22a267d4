import time
import uuid
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from harness.checkpoint.probe import _contend, probe
from harness.checkpoint.store import Store, StoreError

KINDS = ["file", "s3", "gs", "abfs"]


@pytest.fixture(params=KINDS)
def url(request, tmp_path):
    return (
        f"file://{tmp_path}/run"
        if request.param == "file"
        else request.getfixturevalue(f"{request.param}_url")
    )


def test_a_storage_that_keeps_its_promises_passes_and_is_left_empty(url):
    store = Store.at(url, "run")
    assert probe(store) == []
    assert store.files.find(store.root) == []


def test_what_cannot_be_written_is_said_with_the_reason(s3_url):
    store = Store.at(s3_url.replace("://harness/", "://no-such-bucket/"), "run")
    with pytest.raises(StoreError, match=r"no-such-bucket/\w+ cannot be written: FileNotFound"):
        probe(store)


class Lax(MemoryFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Keeps every promise but the one that a test breaks."""

    cachable = False


class Overwrites(Lax):
    def pipe_file(self, path, value, mode="overwrite", **options):
        super().pipe_file(path, value, mode="overwrite")


class ForgetsToList(Lax):
    def find(self, path, *args, **options):
        return {}


class ListsTheDeleted(Lax):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Any] = {}

    def find(self, path, *args, **options):
        self.seen.update(super().find(path, *args, **options))
        return dict(self.seen)


class IsReadOnly(Lax):
    def pipe_file(self, path, value, mode="overwrite", **options):
        raise PermissionError(13, "Permission denied", path)


class IsAhead(Lax):
    def find(self, path, *args, **options):
        found = super().find(path, *args, **options)
        return {name: {**info, "created": time.time() + 90} for name, info in found.items()}


@pytest.mark.parametrize(
    ("files", "did"),
    [
        (Overwrites, "it overwrote a file that was to be created only if it was not there"),
        (ForgetsToList, "it did not list a file that had just been written"),
        (ListsTheDeleted, "it listed a file that had just been deleted"),
        (IsReadOnly, r"cannot be written: PermissionError: \[Errno 13\]"),
    ],
)
def test_a_storage_that_breaks_a_promise_is_refused_by_name_of_what_it_did(files, did):
    store = Store(files(), f"/{uuid.uuid4().hex}", "run", timeout_s=5.0)
    with pytest.raises(StoreError, match=did):
        probe(store)
    assert not [path for path in Lax.store if path.startswith(store.root)]


@pytest.mark.parametrize(
    ("kind", "did"),
    [
        ("overwriting", "overwrote a file that was to be created only if it was not there"),
        ("stale", "did not list a file that had just been written"),
        ("early", "showed an object before all of it was written"),
        ("twosteps", "has no way to create a file only where there is none"),
    ],
)
def test_a_kind_that_nobody_tried_is_refused_by_name_of_what_it_did(flat_url, tmp_path, kind, did):
    store = Store.at(flat_url(kind), "run", timeout_s=20.0)
    with pytest.raises(StoreError, match=f"place/run cannot hold checkpoints: it {did}"):
        probe(store)
    assert list((tmp_path / "objects").iterdir()) == []


def test_a_kind_that_lets_two_create_one_file_is_found_by_trying(monkeypatch):
    def every_one(self: Store, name: str, data: bytes) -> bool:
        self.write(name, [data])
        return True

    store = Store(Lax(), f"/{uuid.uuid4().hex}", "run")
    monkeypatch.setattr(Store, "create", every_one)
    with pytest.raises(StoreError, match="let 4 of 4 that created one file at once all have it"):
        _contend(store, "f")


def test_a_kind_that_keeps_its_promises_passes_whoever_made_it(flat_url, tmp_path):
    assert probe(Store.at(flat_url("flat"), "run")) == []
    assert list((tmp_path / "objects").iterdir()) == []


def test_a_clock_far_from_ours_is_worth_a_word():
    store = Store(IsAhead(), f"/{uuid.uuid4().hex}", "run")
    (line,) = probe(store)
    assert line.startswith(f"the clock of {store.root} is ")
    assert line.endswith(" s ahead of this machine's")
