import numpy as np
import pytest
from text import Windows, load


def test_windows_follow_each_other_and_targets_are_one_byte_ahead():
    windows = Windows(np.arange(10, dtype=np.uint8), context=3)
    assert len(windows) == 3
    inputs, targets = windows[1]
    assert inputs.tolist() == [3, 4, 5]
    assert targets.tolist() == [4, 5, 6]


def test_the_standard_library_is_megabytes_of_text_with_files_held_out():
    train, held_out = load(None, context=128)
    assert len(train.text) > 1_000_000
    assert len(held_out.text) > 50_000


def test_one_file_is_divided_at_its_end(tmp_path):
    (tmp_path / "text").write_bytes(bytes(range(100)))
    train, held_out = load(str(tmp_path / "text"), context=4)
    assert bytes(train.text) == bytes(range(90))
    assert bytes(held_out.text) == bytes(range(90, 100))


def test_the_division_of_a_folder_depends_on_names_inside_it_alone(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for number in range(40):
            (tmp_path / folder / f"{number}.txt").write_bytes(bytes([number]) * 10)
    first, second = (load((tmp_path / folder).as_uri(), context=4) for folder in ("a", "b"))
    for one, other in zip(first, second, strict=True):
        assert bytes(one.text) == bytes(other.text)


def test_a_place_without_files_is_named(tmp_path):
    with pytest.raises(ValueError, match="no file at"):
        load(str(tmp_path), context=4)


def test_too_little_text_is_refused(tmp_path):
    (tmp_path / "text").write_bytes(b"short")
    with pytest.raises(ValueError, match="too little text for 128 bytes"):
        load(str(tmp_path / "text"), context=128)
