"""Turns a tree of state into a short hex string: equal strings, equal bits.

What counts as equal is decided here and nowhere else: types, keys, dtypes, shapes and bytes. The
order of a dictionary's keys does not count, nor where a tensor lives or how its memory is laid out.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray


def digest(tree: Any) -> str:
    """The xxh3-128 of everything in `tree`, in hex.

    Leaves are tensors, None, bool, int, float (by its bits: -0.0 is not 0.0, and a NaN has many
    values) and str; containers are lists, tuples and dictionaries with str or int keys. Raises
    `TypeError` that names the path of anything else.
    """
    state = xxhash.xxh3_128()
    for piece in _pieces(tree, ""):
        state.update(piece)
    return state.hexdigest()


def sample_digest(ids: NDArray[np.int64]) -> str:
    """The xxh3-64, in hex, of sample ids as little-endian int64."""
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(ids, dtype="<i8").tobytes())


def plain_bytes(tensor: torch.Tensor) -> memoryview:
    """The elements of `tensor` in row-major order: a view of its memory where that is possible."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    # A view of one element counts as contiguous whatever its stride, and cannot be seen as bytes.
    flat = plain.as_strided((plain.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


def _pieces(tree: Any, path: str) -> Iterator[bytes | memoryview]:
    """`tree` as a prefix-free code: every node says its kind and its size before its content."""
    if isinstance(tree, Mapping):
        yield b"d%d:" % len(tree)
        for key in sorted(tree, key=lambda key: (isinstance(key, str), key)):
            yield _scalar(key, path)
            yield from _pieces(tree[key], f"{path}/{key}")
    elif isinstance(tree, list | tuple):
        yield b"%s%d:" % (b"l" if isinstance(tree, list) else b"t", len(tree))
        for index, item in enumerate(tree):
            yield from _pieces(item, f"{path}/{index}")
    elif isinstance(tree, torch.Tensor):
        yield b"T%s%s:" % (str(tree.dtype).encode(), str(tuple(tree.shape)).encode())
        yield plain_bytes(tree)
    else:
        yield _scalar(tree, path)


def _scalar(value: Any, path: str) -> bytes:
    for kind, encode in _SCALARS:
        if isinstance(value, kind):
            return encode(value)
    raise TypeError(
        f"{path or 'the state'} is or has as key a {type(value).__qualname__}; state is made of"
        " tensors, None, bool, int, float, str, list, tuple and dict: convert it"
    )


def _text(value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogatepass")
    return b"s%d:%s" % (len(encoded), encoded)


# In this order: a bool is an int as well.
_SCALARS: tuple[tuple[type, Callable[[Any], bytes]], ...] = (
    (type(None), lambda _: b"n"),
    (bool, lambda value: b"1" if value else b"0"),
    (int, lambda value: b"i%d;" % int(value)),
    (float, lambda value: b"f" + struct.pack("<d", value)),
    (str, _text),
)
