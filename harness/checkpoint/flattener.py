"""State trees taken apart one after the other, as at each save: what stands as it did is not named again."""

import struct
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from harness.checkpoint.tree import DEEPEST, Flat, flatten, identity


class Flattener:
    """Remembers the form of the last tree. Training waits for this, and mostly values alone differ."""

    def __init__(self) -> None:
        self._seen: list[Any] = []
        self._firsts: Sequence[int] = ()
        self._names: dict[str, int] = {}
        self._skeleton: Any = None

    def flatten(self, tree: Any) -> Flat:
        """As the function of that name; where all is as it was, with the very skeleton of the last time.

        Tensors may be others than the last time, as those of random streams are, at other addresses.
        """
        seen: list[Any] = []
        tensors: list[torch.Tensor] = []
        is_plain = _look([tree], seen, tensors, 0)
        firsts = _firsts(tensors) if is_plain else ()
        if is_plain and seen == self._seen and firsts == self._firsts:
            named = {name: tensors[place].detach() for name, place in self._names.items()}
            return Flat(named, self._skeleton)
        flat = flatten(tree)
        self._seen, self._firsts = seen if is_plain else [], firsts
        self._names = dict(zip(flat.tensors, sorted(set(firsts)), strict=is_plain))
        self._skeleton = flat.skeleton
        return flat


def _firsts(tensors: Sequence[torch.Tensor]) -> Sequence[int]:
    """For each tensor the place of the first one that it is tied to: its own, if to none before it."""
    begins = [tensor.data_ptr() for tensor in tensors]
    times = Counter(begins)
    if len(times) == len(begins):
        return range(len(begins))
    places: dict[Any, int] = {}
    return [
        place if times[begin] == 1 else places.setdefault(identity(tensor), place)
        for place, (begin, tensor) in enumerate(zip(begins, tensors, strict=True))
    ]


def _look(nodes: Any, seen: list[Any], tensors: list[torch.Tensor], depth: int) -> bool:
    """Note all that decides what `flatten` makes of `nodes`; False where that is not so easily told."""
    for node in nodes:
        kind = type(node)
        seen.append(kind)
        if isinstance(node, torch.Tensor):
            if node.layout is not torch.strided or node.is_meta:
                return False
            tensors.append(node)
            seen.append((node.dtype, node.shape))
        elif kind in _PLAIN:
            seen.append(node)
        elif kind is float:
            seen.append(struct.pack(">d", node))  # 0.0 and -0.0 are equal, and not the same
        elif depth == DEEPEST or not _look_into(node, seen, tensors, depth + 1):
            return False
    return True


def _look_into(node: Any, seen: list[Any], tensors: list[torch.Tensor], depth: int) -> bool:
    kind = type(node)
    if kind is tuple or kind is list:
        seen.append(len(node))
        return _look(node, seen, tensors, depth)
    if kind is dict or kind is OrderedDict:
        seen.append(tuple(node))
        return _TEXT.issuperset(map(type, node)) and _look(node.values(), seen, tensors, depth)
    return False


_PLAIN = frozenset((type(None), str, int, bool))
_TEXT = frozenset((str,))
