from pathlib import Path

from harness.checkpoint.writeback import starter


def test_what_is_written_early_is_what_was_written(tmp_path):
    path = tmp_path / "file"
    with path.open("wb", buffering=0) as file:
        begin = starter(file.fileno())
        for portion in (b"a" * 5000, b"b" * 10, b"c" * 9000):
            file.write(portion)
            begin()
        begin()
    assert path.read_bytes() == b"a" * 5000 + b"b" * 10 + b"c" * 9000


def test_where_the_kernel_cannot_begin_early_nothing_happens():
    with Path("/dev/null").open("wb", buffering=0) as nowhere:
        begin = starter(nowhere.fileno())
        nowhere.write(b"gone")
        begin()
