import errno
import math
import os
import signal
import struct
from collections.abc import Callable

import pytest

from harness import slots
from harness.slots import Mark, SlotWriter, Stage


def test_a_slot_is_readable_after_its_writer_was_killed(tmp_path):
    path = tmp_path / "3"
    child = os.fork()
    if child == 0:
        SlotWriter(path, attempt=2).update(
            mark=Mark.STEPPING, step=7, own_ns=5, wait_ns=6, loss=2.5
        )
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    slot = slots.read(path)
    assert slot is not None
    assert (slot.attempt, slot.pid, slot.mark, slot.step) == (2, child, Mark.STEPPING, 7)
    assert (slot.own_ns, slot.wait_ns, slot.loss) == (5, 6, 2.5)


def test_a_slot_for_which_the_disk_has_no_room_is_an_error_and_no_signal(tmp_path, monkeypatch):
    def full(_descriptor: int, _offset: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        SlotWriter(tmp_path / "0", attempt=0)


def test_every_change_is_progress_and_keeps_what_it_does_not_name(tmp_path):
    with SlotWriter(tmp_path / "0", attempt=0) as writer:
        first = slots.read(tmp_path / "0")
        writer.update(step=1, loss=3.0)
        writer.update(mark=Mark.SAVING)
        last = slots.read(tmp_path / "0")
    assert first is not None
    assert last is not None
    assert math.isnan(first.loss)
    assert (last.step, last.loss, last.mark) == (1, 3.0, Mark.SAVING)
    assert last.signs == first.signs + 2
    assert last.updated_ns >= first.updated_ns


def test_saying_the_same_again_is_no_progress(tmp_path):
    with SlotWriter(tmp_path / "0", attempt=0) as writer:
        writer.update(mark=Mark.SAVING)
        first = slots.read(tmp_path / "0")
        writer.update(mark=Mark.SAVING)
        last = slots.read(tmp_path / "0")
    assert first is not None
    assert last is not None
    assert last.progress == first.progress


def test_places_passed_in_a_step_are_counted_anew_in_the_next(tmp_path):
    with SlotWriter(tmp_path / "0", attempt=0) as writer:
        acts: list[Callable[[], None]] = [
            lambda: writer.enter(Stage.LOADING),
            lambda: writer.enter(Stage.COMPUTING),
            writer.advance,
            writer.beat,
            lambda: writer.update(step=1),
        ]
        seen = []
        for act in acts:
            act()
            slot = slots.read(tmp_path / "0")
            assert slot is not None
            seen.append((slot.stage, slot.progress))
    assert seen == [
        (Stage.LOADING, (0, 1, 0)),
        (Stage.COMPUTING, (0, 2, 0)),
        (Stage.COMPUTING, (0, 3, 0)),
        (Stage.COMPUTING, (0, 3, 1)),
        (Stage.BOUNDARY, (1, 0, 2)),
    ]


def test_where_an_attempt_resumes_is_no_step_that_it_took(tmp_path):
    with SlotWriter(tmp_path / "0", attempt=2) as writer:
        writer.update(mark=Mark.STEPPING, step=10)
        resumed = slots.read(tmp_path / "0")
        writer.update(step=11, own_ns=5, wait_ns=1)
        stepped = slots.read(tmp_path / "0")
    assert resumed is not None
    assert stepped is not None
    assert (resumed.taken, resumed.in_first_step) == (0, True)
    assert (stepped.taken, stepped.in_first_step) == (1, False)


def test_a_slot_taken_over_is_never_read_half(tmp_path):
    with SlotWriter(tmp_path / "0", attempt=1) as writer:
        writer.update(step=8)
    (before,) = struct.unpack_from("=q", (tmp_path / "0").read_bytes())
    with SlotWriter(tmp_path / "0", attempt=2):
        (after,) = struct.unpack_from("=q", (tmp_path / "0").read_bytes())
        assert after > before, "a reader in between would take a mixture for whole"
        slot = slots.read(tmp_path / "0")
    assert slot is not None
    assert (slot.attempt, slot.step, slot.reached, slot.taken) == (2, 0, 0, 0)
    assert slot.in_first_step


def test_no_slot_is_none(tmp_path):
    assert slots.read(tmp_path / "0") is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0" * (slots.SIZE - 1),
        struct.pack("=q12qd", 1, slots.SCHEMA, *range(11), 0.0),  # its writer died in the middle
        struct.pack("=q12qd", 2, slots.SCHEMA, 0, 0, 99, *[0] * 8, 0.0),  # an unknown mark
        struct.pack("=q12qd", 2, slots.SCHEMA, 0, 0, 0, 99, *[0] * 7, 0.0),  # an unknown stage
        struct.pack("=q12qd", 2, slots.SCHEMA + 1, *[0] * 11, 0.0),  # of a newer version
    ],
)
def test_a_slot_that_makes_no_sense_is_none(tmp_path, raw):
    (tmp_path / "0").write_bytes(raw)
    assert slots.read(tmp_path / "0") is None
