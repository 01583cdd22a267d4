"""State trees taken apart one after the other, as at each save: what stands as it did is not named again.

Training waits for this. Mostly values alone differ: those of tensors, and a few numbers such as a
learning rate, which are written into the description of the last tree.
"""

import json
import re
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec
import torch

from harness.checkpoint.tree import DEEPEST, flatten, identity


@dataclass(frozen=True, slots=True)
class Described:
    """A tree taken apart."""

    tensors: Mapping[str, torch.Tensor]
    """As `flatten` gives them."""
    text: str
    """Its skeleton as JSON."""
    form: object
    """The same object as for the tree before, if that had the same containers, keys and kinds of tensors."""


class Flattener:
    """Remembers the last tree."""

    def __init__(self) -> None:
        self._form: tuple[list[Any], Sequence[int]] | None = None
        self._names: dict[str, int] = {}
        self._writing = _Writing("", ())

    def flatten(self, tree: Any) -> Described:
        """Take it apart. Tensors may lie elsewhere than the last time, as those of random streams do.

        Raises `StateError` for what no checkpoint can hold.
        """
        look = _Look()
        is_plain = look.at([tree], 0)
        form = (look.seen, _firsts(look.tensors)) if is_plain else None
        if form is not None and form == self._form:
            named = {name: look.tensors[place].detach() for name, place in self._names.items()}
            return Described(named, self._writing.of(tree, look.values), self._form)
        flat = flatten(tree)
        text = _text(flat.skeleton)
        # Only now: what fails half way is made again.
        firsts = set() if form is None else set(form[1])
        self._names = dict(zip(flat.tensors, sorted(firsts), strict=is_plain))
        self._form, self._writing = form, _Writing(text, look.values)
        return Described(flat.tensors, text, form or object())


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


class _Look:
    """What decides on the result of `flatten`: the form of a tree, and the values within it."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.values: list[Any] = []
        """Floats by their bits: 0.0 and -0.0 are equal, and not the same."""
        self.tensors: list[torch.Tensor] = []

    def at(self, nodes: Any, depth: int) -> bool:
        """Look at all of them; False where it is not so easily told what becomes of one."""
        seen = self.seen
        for node in nodes:
            kind = type(node)
            seen.append(kind)
            if isinstance(node, torch.Tensor):
                if node.layout is not torch.strided or node.is_meta:
                    return False
                self.tensors.append(node)
                seen.append((node.dtype, node.shape))
            elif kind in _PLAIN:
                self.values.append(node)
            elif kind is float:
                self.values.append(struct.pack(">d", node))
            elif depth == DEEPEST or not self._into(node, depth + 1):
                return False
        return True

    def _into(self, node: Any, depth: int) -> bool:
        kind = type(node)
        if kind is tuple or kind is list:
            self.seen.append(len(node))
            return self.at(node, depth)
        if kind is dict or kind is OrderedDict:
            self.seen.append(tuple(node))
            return _KEYS.issuperset(map(type, node)) and self.at(node.values(), depth)
        return False


_PLAIN = frozenset((type(None), str, int, bool))
_KEYS = frozenset((str,))


# ── the description, with other values ──────────────────────────────────────────────────────────


class _Writing:
    """The description of one form, with the values that it had last."""

    def __init__(self, text: str, values: Sequence[Any]) -> None:
        self._text = text
        self._values = values
        self._between: Sequence[str] | None = None
        """What stands before, between and after the values, once that was needed."""
        self._written: list[str] = []

    def of(self, tree: Any, values: Sequence[Any]) -> str:
        """The description of a tree of this form."""
        if values == self._values:
            return self._text
        if self._between is None:
            self._between = _between(tree, len(values))
            self._written = [_written(value) for value in values] if self._between else []
        if not self._between:
            return _text(flatten(tree).skeleton)
        for place, (value, before) in enumerate(zip(values, self._values, strict=True)):
            if value != before:
                self._written[place] = _written(value)
        pairs = zip(self._between, [*self._written, ""], strict=True)
        text = "".join(part for pair in pairs for part in pair)
        self._values, self._text = values, text
        return text


_MARK = re.compile('"\ue000([0-9]+)\ue000"')
"""A value's place in a description; what a script itself puts there in such a form is found to be too many."""


def _between(tree: Any, values: int) -> Sequence[str]:
    """A description without its values; nothing where that cannot be taken apart so."""
    parts = _MARK.split(_text(flatten(_marked(tree, count())).skeleton))
    return parts[::2] if parts[1::2] == [str(number) for number in range(values)] else ()


def _marked(node: Any, numbers: Iterator[int]) -> Any:
    kind = type(node)
    if isinstance(node, torch.Tensor):
        return node
    if kind is list or kind is tuple:
        return kind([_marked(item, numbers) for item in node])
    if kind is dict or kind is OrderedDict:
        return kind([(key, _marked(item, numbers)) for key, item in node.items()])
    return f"\ue000{next(numbers)}\ue000"


def _written(value: Any) -> str:
    if isinstance(value, bytes):
        (value,) = struct.unpack(">d", value)
    return _text(flatten(value).skeleton)


def _text(skeleton: Any) -> str:
    """As JSON, which has no NaN, and nor has a skeleton."""
    try:
        return msgspec.json.encode(skeleton).decode()
    except UnicodeEncodeError:  # half a character, as in the name of a file that is no text
        return json.dumps(skeleton)
