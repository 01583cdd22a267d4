"""`chaos::` over a disk and over S3: every kind of fault, and nothing in a run that is not armed."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.core import url_to_fs

from faultinject import rulefile, tapefile
from faultinject.store import ChaosFileSystem
from faultinject.tape import Tape
from harness import settings
from harness.events import FaultInjected, FaultLifted
from harness.journal import read
from harness.rundir import RunDir

DATA = bytes(range(256)) * 40
Opened = tuple[Any, str]
Open = Callable[..., Opened]


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    made = RunDir.at(tmp_path / "run")
    made.create()
    monkeypatch.setenv("HARNESS_RUN_DIR", str(made.path))
    monkeypatch.setenv("HARNESS_ATTEMPT", "2")
    return made


def arm(run_dir: RunDir, *tables: Mapping[str, Any], seed: int = 0, armed: bool = True) -> None:
    settings.write(run_dir.settings, settings.Record("run", ("train.py",), {}, {}, armed))
    rules = tuple(map(rulefile.read, tables))
    tapefile.write(run_dir.tape, Tape(seed, "plan", 2, (), rules))


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A storage of this kind with nothing in it."""
    if request.param == "file":
        (tmp_path / "storage").mkdir()
        yield f"file://{tmp_path}/storage"
    else:
        yield request.getfixturevalue("s3_url")


@pytest.fixture
def opened(run_dir: RunDir, url: str) -> Open:
    """Arms the run by tables of rules, and opens its storage behind `chaos::`."""

    def open_(*tables: Mapping[str, Any], **how: Any) -> Opened:
        arm(run_dir, *tables, **how)
        found: Opened = url_to_fs(f"chaos::{url}", use_listings_cache=False)
        return found

    return open_


def put(files: Any, path: str, data: bytes = DATA) -> None:
    """Write a file in pieces, and give up as the store does."""
    file = files.open(path, "wb")
    try:
        for start in range(0, len(data), 1000):
            file.write(data[start : start + 1000])
        file.close()
    except OSError:
        file.discard()
        raise


def injected(run_dir: RunDir) -> list[FaultInjected]:
    return [e.event for e in read(run_dir) if isinstance(e.event, FaultInjected)]


def refused(number: int, act: Callable[[], Any]) -> OSError:
    with pytest.raises(OSError, match="injected") as caught:
        act()
    assert caught.value.errno == number
    return caught.value


def bits(data: bytes) -> int:
    return int.from_bytes(data, "big")


def test_without_a_rule_everything_is_as_in_the_storage_itself(opened, url):
    files, root = opened()
    put(files, f"{root}/a/whole") if files._is_local is False else None
    files.makedirs(f"{root}/a", exist_ok=True)
    put(files, f"{root}/a/whole")
    files.pipe_file(f"{root}/small", b"small")
    plain, at = url_to_fs(url, use_listings_cache=False)
    assert at == root
    assert plain.cat_file(f"{root}/a/whole") == files.cat_file(f"{root}/a/whole") == DATA
    with files.open(f"{root}/a/whole", "rb") as file:
        target = bytearray(300)
        assert (file.read(10), file.seek(256), file.readinto(target)) == (DATA[:10], 256, 300)
        assert bytes(target) == DATA[256:556]
        assert file.read() == DATA[556:]
    assert sorted(files.find(root)) == sorted(plain.find(root))
    assert sorted(files.ls(root, detail=False)) == sorted(plain.ls(root, detail=False))
    assert (files.size(f"{root}/small"), files.exists(f"{root}/none")) == (5, False)
    files.rm_file(f"{root}/small")
    files.rm(f"{root}/a", recursive=True)
    assert not plain.exists(f"{root}/small")
    assert not plain.exists(f"{root}/a/whole")


def test_create_never_replaces(opened):
    files, root = opened()
    files.pipe_file(f"{root}/claim", b"first", mode="create")
    with pytest.raises(FileExistsError):
        files.pipe_file(f"{root}/claim", b"second", mode="create")
    assert files.cat_file(f"{root}/claim") == b"first"


def test_a_write_that_fails_leaves_nothing_and_is_in_the_log_before(opened, run_dir):
    files, root = opened({"kind": "eio", "operations": ["write"], "nth": 2})
    put(files, f"{root}/one")
    refused(errno.EIO, lambda: put(files, f"{root}/two"))
    put(files, f"{root}/three")
    assert [path.rsplit("/", 1)[-1] for path in sorted(files.find(root))] == ["one", "three"]
    (entry,) = (e for e in read(run_dir) if isinstance(e.event, FaultInjected))
    assert entry.event == FaultInjected("s1.1", "store.eio", "store write two")
    assert (entry.attempt, entry.writer) == (2, "store")


@pytest.mark.parametrize(
    ("operation", "act"),
    [
        ("create", lambda files, root: files.pipe_file(f"{root}/new", b"x", mode="create")),
        ("delete", lambda files, root: files.rm_file(f"{root}/there")),
        ("delete", lambda files, root: files.rm([f"{root}/there"])),
        ("list", lambda files, root: files.ls(root)),
        ("list", lambda files, root: files.find(root)),
        ("look", lambda files, root: files.info(f"{root}/there")),
        ("look", lambda files, root: files.exists(f"{root}/there")),
        ("look", lambda files, root: files.size(f"{root}/there")),
        ("read", lambda files, root: files.cat_file(f"{root}/there")),
        ("read", lambda files, root: files.open(f"{root}/there", "rb").read()),
        ("write", lambda files, root: files.pipe_file(f"{root}/new", b"x")),
    ],
)
def test_every_operation_can_be_throttled_once(opened, operation, act):
    files, root = opened({"kind": "throttle", "operations": [operation], "nth": 1})
    files.fs.pipe_file(f"{root}/there", b"there")
    assert "503" in str(refused(errno.EBUSY, lambda: act(files, root)))
    assert sorted(files.fs.find(root)) == [f"{root}/there"]
    act(files, root)


@pytest.mark.parametrize("room", [0, 1, 999, 1000, len(DATA) - 1])
def test_a_full_disk_takes_so_many_bytes_and_no_file(opened, room):
    files, root = opened({"kind": "enospc", "after_bytes": len(DATA) + room})
    put(files, f"{root}/fits")
    refused(errno.ENOSPC, lambda: put(files, f"{root}/larger"))
    refused(errno.ENOSPC, lambda: files.pipe_file(f"{root}/small", b"small" * 5000))
    assert sorted(files.find(root)) == [f"{root}/fits"]
    assert files.cat_file(f"{root}/fits") == DATA


def test_a_disk_that_is_just_large_enough_is_not_full(opened, run_dir):
    files, root = opened({"kind": "enospc", "after_bytes": 2 * len(DATA)})
    put(files, f"{root}/one")
    put(files, f"{root}/two")
    assert injected(run_dir) == []


@pytest.mark.parametrize(("limit", "count"), [({}, 4), ({"most": 1}, 1), ({"most": 3}, 3)])
def test_a_disk_is_full_for_as_many_open_files_as_it_may_and_each_is_a_fault_of_its_own(
    opened, run_dir, limit, count
):
    files, root = opened({"kind": "enospc", "after_bytes": 0, **limit})
    names = ["a", "b", "c", "d"]
    at_once = {name: files.open(f"{root}/{name}", "wb") for name in names}
    for name in names[:count]:
        error = refused(errno.ENOSPC, partial(at_once[name].write, DATA))
        assert f"(injected: s1.{names.index(name) + 1})" in str(error)
        at_once[name].discard()
    for name in names[count:]:
        at_once[name].write(DATA)
        at_once[name].close()
    assert sorted(files.find(root)) == [f"{root}/{name}" for name in names[count:]]
    assert injected(run_dir) == [
        FaultInjected(f"s1.{number}", "store.enospc", f"store write {name}")
        for number, name in enumerate(names[:count], 1)
    ]


def test_another_seed_flips_another_bit_and_the_same_seed_the_same_one(opened, run_dir):
    def wrong(seed: int) -> bytes:
        run_dir.storage_faults.unlink(missing_ok=True)
        files, root = opened({"kind": "bit_flip", "operations": ["read"], "nth": 1}, seed=seed)
        put(files, f"{root}/a")
        found: bytes = files.cat_file(f"{root}/a")
        return found

    assert wrong(1) == wrong(1)
    assert len({wrong(seed) for seed in range(4)}) == 4


def test_a_bit_that_flips_as_it_is_written_is_wrong_for_everyone(opened, run_dir):
    files, root = opened({"kind": "bit_flip", "operations": ["write"], "name": "*.bin"})
    put(files, f"{root}/a.bin")
    put(files, f"{root}/b.txt")
    wrong = files.cat_file(f"{root}/a.bin")
    assert bin(bits(wrong) ^ bits(DATA)).count("1") == 1
    assert files.cat_file(f"{root}/b.txt") == DATA
    assert injected(run_dir) == [FaultInjected("s1.1", "store.bit_flip", "store write a.bin")]


def test_a_bit_that_flips_as_it_is_read_is_right_the_next_time(opened):
    files, root = opened({"kind": "bit_flip", "operations": ["read"], "nth": 1})
    put(files, f"{root}/a")
    with files.open(f"{root}/a", "rb") as file:
        wrong = file.read()
    assert bin(bits(wrong) ^ bits(DATA)).count("1") == 1
    assert files.cat_file(f"{root}/a") == DATA


def test_a_short_write_is_a_file_without_its_end(opened):
    files, root = opened({"kind": "short_write", "nth": 1})
    put(files, f"{root}/a")
    short = files.cat_file(f"{root}/a")
    assert 0 < len(short) < len(DATA)
    assert DATA.startswith(short)


def test_a_truncated_read_ends_half_way(opened):
    files, root = opened({"kind": "truncate", "nth": 2}, {"kind": "truncate", "name": "b"})
    put(files, f"{root}/a")
    put(files, f"{root}/b")
    assert files.cat_file(f"{root}/b") == DATA[: len(DATA) // 2]
    with files.open(f"{root}/a", "rb") as file:
        assert file.read() == DATA[: len(DATA) // 2]
        assert file.read() == b""
    assert files.cat_file(f"{root}/a") == DATA


def test_a_stale_listing_has_what_went_and_not_what_came(opened):
    rules = {"kind": "stale", "seconds": 3600, "from_nth": 2, "most": 2}
    files, root = opened(rules)
    files.fs.pipe_file(f"{root}/old", b"old")  # from before the run
    put(files, f"{root}/new")
    names = [f"{root}/{name}" for name in ("new", "old")]
    assert sorted(files.ls(root, detail=False)) == names
    assert files.ls(root, detail=False) == [f"{root}/old"]
    assert files.find(root) == [f"{root}/old"]
    assert sorted(files.find(root)) == names
    assert files.exists(f"{root}/new")


def test_a_call_that_is_late_is_right_and_its_end_is_in_the_log(opened, run_dir):
    files, root = opened({"kind": "latency", "seconds": 0.2, "operations": ["read"]})
    put(files, f"{root}/a")
    began = time.monotonic()
    assert files.cat_file(f"{root}/a") == DATA
    assert time.monotonic() - began >= 0.2
    told = [e.event for e in read(run_dir)]
    assert told == [FaultInjected("s1.1", "store.latency", "store read a"), FaultLifted("s1.1")]


def test_a_call_that_hangs_ends_without_an_answer(opened):
    files, root = opened({"kind": "hang", "seconds": 0.2, "operations": ["write"]})
    refused(errno.ETIMEDOUT, lambda: put(files, f"{root}/a"))
    assert files.find(root) == []


def test_calls_are_counted_over_all_processes_and_never_spoilt_twice(opened, run_dir, url):
    files, root = opened({"kind": "eio", "operations": ["read"], "nth": 3})
    put(files, f"{root}/a")
    code = (
        "import sys; from fsspec.core import url_to_fs\n"
        "files, root = url_to_fs(sys.argv[1])\n"
        "print(len(files.cat_file(f'{root}/a')))"
    )
    ends = [
        subprocess.run(
            [sys.executable, "-c", code, f"chaos::{url}"], capture_output=True, check=False
        ).returncode
        for _ in range(4)
    ]
    assert ends == [0, 0, 1, 0]
    assert [fault.id for fault in injected(run_dir)] == ["s1.1"]


def test_a_rule_more_shifts_nobody_s_draws(opened, run_dir):
    chance = {"kind": "throttle", "operations": ["look"], "probability": 0.5}
    other = {"kind": "eio", "operations": ["list"], "probability": 0.5}

    def outcomes(*tables: Mapping[str, Any]) -> list[bool]:
        run_dir.storage_faults.unlink(missing_ok=True)
        files, root = opened(*tables, seed=5)
        found = []
        for _ in range(20):
            try:
                files.exists(f"{root}/a")
                found.append(True)
            except OSError:
                found.append(False)
        return found

    alone = outcomes(chance)
    assert outcomes(other, chance) == alone
    assert set(alone) == {True, False}


# ── armed runs alone ────────────────────────────────────────────────────────────────────────────


def test_outside_of_a_run_it_refuses_to_open(tmp_path, monkeypatch):
    monkeypatch.delenv("HARNESS_RUN_DIR", raising=False)
    with pytest.raises(PermissionError, match="HARNESS_RUN_DIR names none: start the run by"):
        url_to_fs(f"chaos::file://{tmp_path}")


def test_a_run_that_is_not_armed_is_left_alone(run_dir, tmp_path):
    arm(run_dir, armed=False)
    with pytest.raises(PermissionError, match=r"is not armed: .* or name the storage without"):
        url_to_fs(f"chaos::file://{tmp_path}")


def test_a_plan_that_is_missing_or_damaged_opens_nothing(run_dir, tmp_path):
    arm(run_dir)
    run_dir.tape.write_text("no tape")
    with pytest.raises(OSError, match="cannot read its plan"):
        url_to_fs(f"chaos::file://{tmp_path}")
    run_dir.tape.unlink()
    with pytest.raises(PermissionError, match="chaos:: needs a plan"):
        url_to_fs(f"chaos::file://{tmp_path}")


def test_it_needs_a_storage_to_spoil(run_dir):
    arm(run_dir)
    with pytest.raises(ValueError, match="name it, as in chaos::file"):
        ChaosFileSystem()


def test_fsspec_finds_it_by_its_name():
    assert fsspec.get_filesystem_class("chaos") is ChaosFileSystem


def test_a_file_that_was_never_closed_is_not_there(run_dir, tmp_path):
    arm(run_dir)
    files, root = url_to_fs(f"chaos::file://{tmp_path}/storage")
    files.makedirs(root)
    file = files.open(f"{root}/a", "wb")
    file.write(DATA)
    del file
    assert os.listdir(root) == []  # noqa: PTH208
