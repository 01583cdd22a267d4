"""NCCL's flight recorder is asked through the pipe that torch opens for that."""

import os
from pathlib import Path

from launch import flightrecorder


def test_a_rank_is_told_where_to_write_only_where_its_recorder_is_on(tmp_path: Path):
    told = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/nccl-pipe-",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/nccl-",
    }
    assert flightrecorder.variables(tmp_path, {}) == {}
    assert flightrecorder.variables(tmp_path, {"TORCH_FR_BUFFER_SIZE": "0"}) == {}
    assert flightrecorder.variables(tmp_path, {"TORCH_FR_BUFFER_SIZE": "2000"}) == told
    assert flightrecorder.variables(tmp_path, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}) == told


def test_whoever_listens_is_asked_and_the_pipes_are_removed(tmp_path: Path):
    for rank in (0, 1):
        os.mkfifo(tmp_path / f"nccl-pipe-{rank}.pipe")
    reader = os.open(tmp_path / "nccl-pipe-1.pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        (tmp_path / "nccl-1").touch()  # it answers at once
        flightrecorder.ask(tmp_path, [0, 1, 2])
        assert os.read(reader, 100) == b"1\n"
    finally:
        os.close(reader)
    assert [path.name for path in tmp_path.iterdir()] == ["nccl-1"]


def test_a_recorder_that_does_not_answer_holds_nobody_up_for_long(tmp_path: Path):
    os.mkfifo(tmp_path / "nccl-pipe-0.pipe")
    reader = os.open(tmp_path / "nccl-pipe-0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        flightrecorder.ask(tmp_path, [0], within_s=0.05)
    finally:
        os.close(reader)
    assert list(tmp_path.iterdir()) == []
