"""What one side of a state becomes at save after save."""

import json
import os

import pytest

from harness.checkpoint import flattener
from harness.checkpoint.capture import _Side
from harness.checkpoint.tree import unflatten


def back(side: _Side, tree: object) -> object:
    tensors = side.taken(tree)
    return unflatten(
        json.loads(side.text), {n.removeprefix("own/"): it for n, it in tensors.items()}
    )


def test_half_a_character_is_saved_as_it_is_each_time():
    side = _Side("own/")
    tree = {"path": os.fsdecode(b"/data/\xff"), "seen": [1, 2.5], "\udc80": 1}
    for _ in range(2):
        assert back(side, tree) == tree


def test_what_could_not_be_described_once_is_not_described_as_what_came_before(monkeypatch):
    side = _Side("own/")
    assert back(side, {"seen": 1}) == {"seen": 1}

    def full(_: object) -> str:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(flattener, "_text", full)
        with pytest.raises(MemoryError):
            side.taken({"seen": 2})
    assert back(side, {"seen": 2}) == {"seen": 2}
