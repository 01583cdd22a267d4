import errno
import os
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore

from harness import settings
from harness.checkpoint import address
from harness.checkpoint.lineage import Departure
from harness.checkpoint.manifest import COMMIT, Place, record
from harness.checkpoint.messages import Channel, SilenceError
from harness.checkpoint.seal import unsealed
from harness.checkpoint.store import Store, StoreError
from tests.flat import Flat


@pytest.fixture
def store(tmp_path):
    return Store.open(f"file://{tmp_path}/deep/down", "run")


@pytest.mark.parametrize("form", ["file://{}/here", "{}/here", "local://{}/here"])
def test_a_store_is_opened_by_url_or_path(tmp_path, form):
    store = Store.open(form.format(tmp_path), "run")
    owner = {"schema": 1, "run_id": "run"}
    assert unsealed((tmp_path / "here/run.json").read_bytes()) == owner
    assert store.places() == []


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("memory://x", "memory:// lives in one process alone"),
        ("chaos::memory://x", "memory:// lives in one process alone"),
        ("kind://host/run", "fsspec knows no storage kind://"),
        ("S3://bucket/run", "fsspec knows no storage S3://"),
        ("chaos::kind://host/run", "fsspec knows no storage kind://"),
        ("kind:/host/run", "a URL has two slashes, as in kind://bucket/run"),
        ("kind://", "it names no place, as kind://place/run does"),
        ("s3:/bucket/run", "a URL has two slashes, as in s3://bucket/run"),
        ("s3:bucket/run", "a URL has two slashes, as in s3://bucket/run"),
        ("gs://", "it names no bucket, as gs://bucket/run does"),
        ("nothing::s3://bucket/run", "Protocol not known: nothing"),
    ],
)
def test_storage_that_cannot_hold_checkpoints_is_refused_by_name(url, why):
    with pytest.raises(StoreError, match=why):
        Store.open(url, "run")
    assert not any(Path(name).exists() for name in ("s3:", "S3:", "kind:"))


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAIOSFODNN7:hunter2@bucket/run",
        "abfs://container@account.dfs.core.windows.net/run?sig=hunter2",
        "s3://bucket/run?X-Amz-Security-Token=hunter2",
        "chaos::s3://bucket/run?secret_key=hunter2",
        "s3://bucket/run?passwd=hunter2",
        "s3://AKIAIOSFODNN7:hunter2/with/slashes@bucket/run",
        "chaos::s3://AKIAIOSFODNN7:hunter2/with/slashes@bucket/run",
        "s3:/AKIAIOSFODNN7:hunter2@bucket/run",
        "s3:AKIAIOSFODNN7:hunter2@bucket/run",
        "://AKIAIOSFODNN7:hunter2@bucket/run",
        "file://user:hunter2@host/run",
        "s3://AKIAIOSFODNN7:hunter2@bucket/run\0",
    ],
)
def test_credentials_in_a_url_are_refused_and_never_repeated(url):
    with pytest.raises(StoreError, match="has credentials in it") as refusal:
        Store.at(url, "run")
    with pytest.raises(ValueError, match="has credentials in it") as mistake:
        settings.resolve([("flag", {"checkpoints": url})])
    assert "hunter2" not in str(refusal.value) + str(mistake.value)


@pytest.mark.parametrize(
    "url",
    [
        "abfs://container@account.dfs.core.windows.net/run",
        "webhdfs://namenode:9870/run@night:1",
        "sftp://me@host:22/run",
        "s3://[::1]:9000/run",
        "chaos::file:///data/run:1",
        "/data/a:b@c/run",
    ],
)
def test_a_user_a_port_and_a_path_are_no_credentials(url):
    address.check(url)


def test_a_package_that_is_missing_is_named_with_the_extra_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(import_module("fsspec.registry")._registry, "s3", raising=False)
    with pytest.raises(StoreError, match=r"pip install 'resilience-harness\[s3\]'"):
        Store.at("s3://bucket/run", "run")


def test_what_is_no_file_is_never_waited_for(store):
    os.mkfifo(store.path("pipe"))
    with pytest.raises(OSError, match="it is no file"):
        store.read("pipe")


@contextmanager
def no_more_files() -> Iterator[None]:
    """Nothing can be opened in this block, and no folder listed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_an_empty_one(store):
    store.write("step-00000010-1/commit.json", [b"commit"])
    with no_more_files(), pytest.raises(OSError, match="Too many open files"):
        store.listing()
    assert store.committed() == [Place(10, 1)]


class Unlisted(Flat):
    """Refuses to list one folder."""

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        if "step-00000010-1" in path:
            raise PermissionError(errno.EACCES, "no", path)
        return super().ls(path, detail, **options)


def test_so_it_is_for_storage_that_fsspec_lists_folder_by_folder(tmp_path):
    store = replace(Store.open(f"file://{tmp_path}", "run"), files=Unlisted(str(tmp_path)))
    store.write("step-00000010-1/commit.json", [b"commit"])
    with pytest.raises(PermissionError):
        store.listing()


def test_a_checkpoint_that_lies_behind_a_link_is_one(store, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    store.write("step-00000010-1/commit.json", [b"commit"])
    Path(store.path("step-00000010-1")).rename(elsewhere)
    Path(store.path("step-00000010-1")).symlink_to(elsewhere)
    (elsewhere / "again").symlink_to(elsewhere)  # and a link into itself is no way on

    assert store.committed() == [Place(10, 1)]
    assert store.inventory()["step-00000010-1/commit.json"] == len(b"commit")


def test_a_commit_that_is_a_link_to_nowhere_is_there_and_not_swept(store):
    store.write("step-00000010-1/shard", [b"shard"])
    Path(store.path("step-00000010-1", "commit.json")).symlink_to("/nowhere")

    assert store.inventory() == {"step-00000010-1/commit.json": 0, "step-00000010-1/shard": 5} | {
        "run.json": store.size("run.json")
    }


def test_the_directory_of_another_run_is_refused(store):
    with pytest.raises(
        StoreError, match="holds the checkpoints of run 'run', and this is run 'new'"
    ):
        Store.open(store.root, "new")


def test_attempts_are_claimed_once_however_many_claim_at_once(store):
    claimed: list[int] = []
    claimers = [
        threading.Thread(target=lambda: claimed.append(store.claim_attempt())) for _ in range(8)
    ]
    for claimer in claimers:
        claimer.start()
    for claimer in claimers:
        claimer.join()

    assert sorted(claimed) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert store.claim_attempt() == 9


def test_no_attempt_is_claimed_in_storage_that_was_emptied_meanwhile(store):
    store.claim_attempt()
    for name in store.inventory():
        store.delete(name)
    with pytest.raises(StoreError, match="was emptied or replaced since the run has used it"):
        store.claim_attempt()
    assert store.inventory() == {}


def test_no_attempt_is_claimed_in_storage_that_another_run_took_over(store):
    store.delete("run.json")
    replace(store, run_id="other").adopt()
    with pytest.raises(StoreError, match="holds the checkpoints of run 'other'"):
        store.claim_attempt()


def test_attempt_numbers_go_on_past_five_digits(store):
    store.write("attempts/99999.claim", [])
    assert [store.claim_attempt(), store.claim_attempt()] == [100000, 100001]


def test_a_number_is_never_given_again_by_storage_that_knows_of_it_otherwise(store):
    store.record_lineage(4, None, 0)
    assert store.claim_attempt() == 5
    assert store.claim_attempt(above=8) == 9
    assert store.newest_attempt() == 9


def test_lineage_is_written_once(store):
    store.record_lineage(1, None, 0)
    store.record_lineage(2, 1, 50)

    with pytest.raises(StoreError, match="attempt 2 has chosen its state already"):
        store.record_lineage(2, 1, 60)
    assert store.departures() == {1: Departure(None, 0), 2: Departure(1, 50)}
    assert store.chain().limits == {2: None, 1: 50}


@pytest.mark.parametrize(
    "content",
    [
        b'{"schema": 1, "pare',
        b'{"schema": 1}',
        b'{"schema": 1, "parent": "2", "step": 10}',
        b'{"schema": 1, "parent": 2, "step": null}',
        b"[]",
    ],
)
def test_a_damaged_record_of_lineage_is_said_and_not_guessed(store, content):
    store.write("attempts/00003.json", [content])

    with pytest.raises(StoreError, match=r"attempts/00003.json is damaged"):
        store.chain()


def test_a_record_of_the_owner_that_names_none_is_said(store):
    store.write("run.json", [b'{"schema": 1}'])

    with pytest.raises(StoreError, match=r"run.json is damaged"):
        store.adopt()


def test_of_two_that_create_a_file_one_wins_and_its_content_stays(store):
    assert store.create("x", b"first")
    assert not store.create("x", b"second")
    assert store.read("x") == b"first"
    assert store.inventory() == {"run.json": 79, "x": 5}


def test_a_directory_is_used_once(store):
    store.begin(Place(10, 1))
    store.write(f"{Place(10, 1).name}/shard", [b"x"])
    with pytest.raises(FileExistsError):
        store.begin(Place(10, 1))


def test_what_is_written_is_recorded_with_size_and_checksum(store):
    assert store.write("f", [b"abc", memoryview(b"defg")]) == record(b"abcdefg")
    assert record(b"").xxh3_128 == "99aa06d3014798d86001c324468d497f"  # XXH3-128 of nothing
    assert store.read("f") == b"abcdefg"


def test_a_file_is_poured_in_portions_in_order_and_all_of_it_counts(store):
    content = bytes(range(256)) * 3000
    written = store.write("f", [content])
    got: list[tuple[int, bytes]] = []

    read = store.pour("f", len(content), lambda begin, part: got.append((begin, bytes(part))))

    assert b"".join(part for _, part in got) == content
    assert [begin for begin, _ in got] == [sum(len(p) for _, p in got[:i]) for i in range(len(got))]
    assert (read, len(got) > 2) == (written, True)


@pytest.mark.parametrize(("length", "counted"), [(0, 0), (7, 7), (12, 12), (14, 14), (99, 14)])
def test_a_file_that_is_longer_or_shorter_than_it_should_be_is_seen(store, length, counted):
    store.write("f", [bytes(length)])
    assert store.pour("f", 13).size == counted
    assert (store.size("f"), store.size("none")) == (length, None)


def test_places_are_found_by_number_whatever_else_lies_about(store):
    for place in (Place(10000, 1), Place(9000, 2), Place(9000, 1)):
        store.write(f"{place.name}/shard", [b"x"])
    store.write("step-old/shard", [b"x"])
    store.create(f"{Place(9000, 1).name}/{COMMIT}", b"")

    assert store.places() == [Place(9000, 1), Place(9000, 2), Place(10000, 1)]
    assert [store.is_committed(place) for place in store.places()] == [True, False, False]


def test_the_commit_goes_first_when_a_save_is_deleted(store):
    place = Place(10, 1)
    for name in (COMMIT, "shard", "a-shard"):
        store.write(f"{place.name}/{name}", [b"x"])
    left: list[list[str]] = []

    store.remove(place, lambda: left.append(sorted(store.listing(place.name))))

    assert left == [[f"{place.name}/a-shard", f"{place.name}/shard"], [f"{place.name}/shard"], []]
    assert [path.name for path in Path(store.root).iterdir()] == ["run.json"]
    store.remove(place)  # what is gone already is no error


def test_a_file_that_appears_in_the_middle_of_a_deletion_goes_too(store):
    place = Place(10, 1)
    late = ["one", "two", "three"]

    def write_another() -> None:
        if late:
            store.write(f"{place.name}/{late.pop()}", [b"x"])

    write_another()
    store.remove(place, write_another)

    assert store.places() == []


def test_words_are_heard_in_the_order_in_which_they_came():
    messages = HashStore()
    first, second = Channel(messages, "t/"), Channel(messages, "t/")

    assert first.append("list", b"a") == 1
    assert second.append("list", b"b") == 2
    assert second.hear("never", "list/2", within_s=1) == ("list/2", b"b")


def test_silence_is_an_error_and_not_a_hang():
    looks: list[int] = []
    with pytest.raises(SilenceError, match=r"no word on a or b within 0\.01 s"):
        Channel(HashStore(), "").hear("a", "b", within_s=0.01, meanwhile=lambda: looks.append(1))
    assert looks


def test_a_storage_is_found_as_it_is_without_knowing_whose_it_is(store):
    found = Store.existing(f"file://{store.root}")

    assert (found.run_id, found.root) == (store.run_id, store.root)


def test_where_no_run_keeps_its_checkpoints_nothing_is_made(tmp_path):
    with pytest.raises(
        StoreError, match=r"no run keeps its checkpoints in .*: there is no run.json"
    ):
        Store.existing(f"file://{tmp_path}/none")
    assert list(tmp_path.iterdir()) == []


def test_the_inventory_names_every_file_with_its_size(store):
    place = Place(10, 1)
    store.begin(place)
    store.write(f"{place.name}/a", [b"abc"])

    held = store.inventory()

    assert held == {"run.json": store.size("run.json"), "step-00000010-1/a": 3}


def test_a_record_of_lineage_with_any_bit_flipped_says_what_it_said_or_nothing(store):
    store.record_lineage(2, 1, 20)
    told = store.departures()
    path = Path(store.path("attempts", "00002.json"))
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            assert store.departures() == told
        except StoreError as error:
            assert "put it back from a copy" in str(error)  # noqa: PT017


def test_the_record_of_another_attempt_is_not_taken_for_this_one_s(store):
    store.record_lineage(1, None, 0)
    data = Path(store.path("attempts", "00001.json")).read_bytes()
    Path(store.path("attempts", "00002.json")).write_bytes(data)
    with pytest.raises(StoreError, match=r"00002.json is damaged \(it is that of attempt 1\)"):
        store.chain()


def test_records_that_cannot_all_be_true_are_the_storage_s_mistake(store):
    store.record_lineage(2, 3, 20)
    with pytest.raises(StoreError, match="attempt 2 claims to descend from attempt 3"):
        store.chain()


def test_a_path_behind_something_wrapped_around_it_may_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert address.spelled_out("chaos::kept") == f"chaos::file://{tmp_path}/kept"
    assert address.spelled_out("chaos::s3://bucket/run") == "chaos::s3://bucket/run"
    assert address.spelled_out("kept") == "kept"
