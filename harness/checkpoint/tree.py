"""A state tree ↔ its tensors by name, and JSON for everything else.

What may stand in a checkpoint is decided here: tensors, None, bool, int, float, str, list, tuple and
dict. Everything that comes back has the type and, to the last bit, the value that went in.
"""

import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any

import torch

# The names are those of the safetensors format.
DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
"""Every dtype that a checkpoint can hold, by its name in a shard."""

DTYPE_NAMES: Mapping[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}

_TENSOR, _INT, _FLOAT, _TUPLE = "$tensor", "$int", "$float", "$tuple"
# Mappings that PyTorch's own state dicts hold; a scheduler's Counter fails to work as a plain dict.
_MAPPINGS: Mapping[str, type[dict[Any, Any]]] = {
    "$dict": dict,
    "$ordered": OrderedDict,
    "$counter": Counter,
}
_MAPPING_TAGS = {kind: tag for tag, kind in _MAPPINGS.items()}
_EXACT_IN_JSON = 2**53  # other readers of JSON hold numbers as doubles
DEEPEST = 100
"""Levels of containers within each other."""
_RESERVED = "__metadata__"  # safetensors keeps this name for itself
_KNOWN = 1 << 16
"""Names that are remembered."""
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class StateError(ValueError):
    """A tree holds what no checkpoint can: one line for each path."""

    def __init__(self, problems: Iterable[tuple[str, str]]) -> None:
        self.problems = tuple(problems)
        lines = "\n".join(f"  {path or '(the tree itself)'}: {why}" for path, why in self.problems)
        super().__init__(
            "state that a checkpoint cannot hold (it holds tensors, None, bool, int, float, str,"
            f" list, tuple, and dict with str or int keys):\n{lines}"
        )


@dataclass(frozen=True, slots=True)
class Flat:
    """A tree taken apart."""

    tensors: dict[str, torch.Tensor]
    """By unique name, each once however often it is tied. Not copies: the caller's own memory."""
    skeleton: Any
    """The rest, as `json.dumps(…, allow_nan=False)` takes it; tensors stand in it by name."""


@dataclass(slots=True)
class _Walk:
    """What was found so far on the way through a tree."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    names: dict[tuple[Any, ...], str] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)
    within: set[int] = field(default_factory=set)


def flatten(tree: Any) -> Flat:
    """Take `tree` apart. Raises `StateError` that lists every path which cannot be saved."""
    walk = _Walk()
    skeleton = _skeleton(tree, (), walk)
    if walk.problems:
        raise StateError(walk.problems)
    return Flat(walk.tensors, skeleton)


def unflatten(skeleton: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Put a tree together again; tied tensors are one object. Raises `ValueError` if it is not one."""
    if isinstance(skeleton, list):
        return [unflatten(item, tensors) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    if len(skeleton) == 1:
        ((tag, body),) = skeleton.items()
        if tag.startswith("$"):
            return _tagged(tag, body, tensors)
    return {key: unflatten(item, tensors) for key, item in skeleton.items()}


def _tagged(tag: str, body: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if tag == _TENSOR:
        if body not in tensors:
            raise ValueError(f"the state names tensor {body!r}, which no shard holds")
        return tensors[body]
    if tag == _INT:
        return int(body, 16)
    if tag == _FLOAT:
        return struct.unpack(">d", bytes.fromhex(body))[0]
    if tag == _TUPLE:
        return tuple(unflatten(item, tensors) for item in body)
    if tag in _MAPPINGS:
        pairs = ((unflatten(key, tensors), unflatten(item, tensors)) for key, item in body)
        return _MAPPINGS[tag](dict(pairs))
    raise ValueError(f"the state holds an unknown tag {tag!r}; a newer version may have written it")


def _skeleton(node: Any, path: tuple[str, ...], walk: _Walk) -> Any:
    """The JSON form of `node`; its tensors and its problems go to `walk`."""
    kind = type(node)
    if node is None or kind is bool or kind is str:
        return node
    if kind is int:
        return node if abs(node) < _EXACT_IN_JSON else {_INT: hex(node)}
    if kind is float:
        return node if math.isfinite(node) else {_FLOAT: struct.pack(">d", node).hex()}
    if isinstance(node, torch.Tensor):
        return _tensor(node, path, walk)
    if kind is list or kind is tuple or kind in _MAPPING_TAGS:
        return _container(node, path, walk)
    walk.problems.append((_name(path), _refusal(node)))
    return None


def _container(node: Any, path: tuple[str, ...], walk: _Walk) -> Any:
    if id(node) in walk.within or len(path) >= DEEPEST:
        walk.problems.append((_name(path), f"contains itself, or more than {DEEPEST} levels"))
        return None
    walk.within.add(id(node))
    try:
        if isinstance(node, dict):
            return _mapping(node, path, walk)
        items = [_skeleton(item, (*path, str(i)), walk) for i, item in enumerate(node)]
        return {_TUPLE: items} if isinstance(node, tuple) else items
    finally:
        walk.within.discard(id(node))


def _mapping(node: dict[Any, Any], path: tuple[str, ...], walk: _Walk) -> Any:
    items: list[tuple[str | int, Any]] = []
    plain = type(node) is dict
    for key, value in node.items():
        if type(key) is str:
            plain = plain and key[:1] != "$"
            items.append((key, _skeleton(value, (*path, key), walk)))
        elif type(key) is int:
            plain = False
            items.append((key, _skeleton(value, (*path, _shown(key)), walk)))
        else:
            walk.problems.append((_name((*path, str(key))), f"key of type {_kind(key)}"))
    if plain:
        return dict(items)
    return {_MAPPING_TAGS[type(node)]: [[_skeleton(key, (), walk), value] for key, value in items]}


def _tensor(tensor: torch.Tensor, path: tuple[str, ...], walk: _Walk) -> Any:
    refusal = _tensor_refusal(tensor)
    if refusal is not None:
        walk.problems.append((_name(path), refusal))
        return None
    own = identity(tensor)
    name = walk.names.get(own)
    if name is None:
        name = _natural(path)
        if name is None or name in walk.tensors:
            name = next(name for name in _others(path) if name not in walk.tensors)
        walk.names[own] = name
        walk.tensors[name] = tensor.detach()
    return {_TENSOR: name}


def identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for two tensors that are tied: the same elements of the same memory."""
    if tensor.numel() == 0:
        return (id(tensor),)
    layout = (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
    return (tensor.data_ptr(), tensor.device, *layout)


@lru_cache(maxsize=_KNOWN)
def _natural(path: tuple[str, ...]) -> str | None:
    """The name of the tensor at `path`, if it can have that: made once, for training waits for it."""
    name = _name(path)
    return None if name in ("", _RESERVED) else name


def _others(path: tuple[str, ...]) -> Iterator[str]:
    """Further names for the tensor at `path`, where keys 1 and "1" meet."""
    name = _name(path)
    return (f"{name}~{number}" for number in count(2))


def _name(path: tuple[str, ...]) -> str:
    """`path` as one string; keys are escaped as in a JSON pointer, so that no two paths meet."""
    escaped = (key.replace("~", "~0").replace("/", "~1") for key in path)
    return "/".join(escaped).encode("utf-8", "backslashreplace").decode()


def _shown(key: int) -> str:
    """`key` in a path; Python refuses to write integers of thousands of digits in decimal."""
    return str(key) if abs(key) < _EXACT_IN_JSON else hex(key)


def _kind(value: Any) -> str:
    kind = type(value)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _refusal(value: Any) -> str:
    return f"{_kind(value)} is not a kind of state; make it one of those, or leave it out"


def _tensor_refusal(tensor: torch.Tensor) -> str | None:
    """Why this tensor cannot be saved, or None."""
    dense = tensor.layout is torch.strided and not tensor.is_meta
    if type(tensor) in _PLAIN and dense and tensor.dtype in DTYPE_NAMES:
        return None
    name = type(tensor).__name__
    if name in ("DTensor", "ShardedTensor", "FlatParameter"):
        return f"{name}: FSDP and tensor parallel are not supported yet; use DDP"
    if type(tensor) not in _PLAIN:
        return f"tensor subclass {_kind(tensor)}; give a plain tensor"
    if tensor.layout is not torch.strided:
        return f"{tensor.layout} tensor; give it dense"
    if tensor.is_meta:
        return "meta tensor, which holds no values"
    return f"{tensor.dtype}; known: {', '.join(str(dtype)[6:] for dtype in DTYPE_NAMES)}"
