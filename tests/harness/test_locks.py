"""Locks as signs of life: who is seen, and who is not taken for another by a look."""

import fcntl
import os
import time
from pathlib import Path

import pytest

from harness import locks


def opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY)


@pytest.mark.parametrize(
    ("held", "seen"),
    [(fcntl.LOCK_EX, True), (fcntl.LOCK_SH, False), (fcntl.LOCK_UN, False)],
)
def test_a_lock_is_seen_that_is_held_alone(tmp_path, held, seen):
    descriptor = opened(tmp_path)
    fcntl.flock(descriptor, held)
    assert locks.is_held(tmp_path) is seen
    os.close(descriptor)
    assert not locks.is_held(tmp_path)


def test_what_is_not_there_is_held_by_nobody_and_what_cannot_be_opened_is_not_known(tmp_path):
    assert not locks.is_held(tmp_path / "nothing")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        locks.is_held(tmp_path / "loop")


def test_a_look_keeps_nobody_from_a_lock(tmp_path, monkeypatch):
    look, mine = opened(tmp_path), opened(tmp_path)
    fcntl.flock(look, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _: fcntl.flock(look, fcntl.LOCK_UN))
    locks.take(mine)
    assert locks.is_held(tmp_path)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(BlockingIOError):
        locks.take(look)
    os.close(look)
    os.close(mine)
