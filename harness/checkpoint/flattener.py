"""State trees taken apart one after the other, as at each save: what stands as it did is not named again."""

import struct
from collections import OrderedDict
from typing import Any

import torch

from harness.checkpoint.tree import DEEPEST, Flat, flatten, identity


class Flattener:
    """Remembers the form of the last tree. Training waits for this, and mostly values alone differ."""

    def __init__(self) -> None:
        self._seen: list[Any] = []
        self._names: dict[str, int] = {}
        self._skeleton: Any = None

    def flatten(self, tree: Any) -> Flat:
        """As the function of that name; where all is as it was, with the very skeleton of the last time."""
        seen: list[Any] = []
        tensors: list[torch.Tensor] = []
        is_plain = _look(tree, seen, tensors, 0)
        if is_plain and seen == self._seen:
            named = {name: tensors[place].detach() for name, place in self._names.items()}
            return Flat(named, self._skeleton)
        flat = flatten(tree)
        self._seen = seen if is_plain else []
        firsts = {identity(tensor): place for place, tensor in reversed([*enumerate(tensors)])}
        self._names = dict(zip(flat.tensors, sorted(firsts.values()), strict=is_plain))
        self._skeleton = flat.skeleton
        return flat


def _look(node: Any, seen: list[Any], tensors: list[torch.Tensor], depth: int) -> bool:
    """Note all that decides what `flatten` makes of `node`; False where that is not so easily told."""
    kind = type(node)
    seen.append(kind)
    if kind is dict or kind is OrderedDict:
        seen.append(tuple(node))
        if not all(type(key) is str for key in node):
            return False
        return depth < DEEPEST and all(_look(it, seen, tensors, depth + 1) for it in node.values())
    if kind is list or kind is tuple:
        seen.append(len(node))
        return depth < DEEPEST and all(_look(item, seen, tensors, depth + 1) for item in node)
    if isinstance(node, torch.Tensor):
        tensors.append(node)
        node = identity(node)
    elif kind is float:
        node = struct.pack(">d", node)  # 0.0 and -0.0 are equal, and not the same
    elif not (node is None or kind is bool or kind is str or kind is int):
        return False
    seen.append(node)
    return True
