import math
import struct
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.digest import digest, sample_digest

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary(max_size=4).map(lambda raw: torch.tensor(list(raw), dtype=torch.uint8))
)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


def written(tree: Any) -> str:
    """`tree` as unambiguous text, by a second way of thinking."""
    if isinstance(tree, dict):
        keys = sorted(tree, key=lambda key: (type(key).__name__, key))
        return "{" + ",".join(f"{key!r}:{written(tree[key])}" for key in keys) + "}"
    if isinstance(tree, list | tuple):
        return f"{type(tree).__name__}({','.join(written(item) for item in tree)})"
    if isinstance(tree, torch.Tensor):
        return f"tensor({tree.tolist()})"
    if isinstance(tree, float):
        return f"float({struct.pack('<d', tree).hex()})"
    return f"{type(tree).__name__}({tree!r})"


@given(TREES, TREES)
def test_two_trees_have_one_digest_if_and_only_if_they_are_the_same(one: Any, other: Any):
    assert (digest(one) == digest(other)) == (written(one) == written(other))


def test_the_digest_of_a_small_tree_stays_what_it_is():
    tree = {"weight": torch.tensor([[1.0, -0.0]]), "step": 3, "names": ("a", None)}
    assert digest(tree) == "a1068972743b030f585f6fe8a6840372"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (math.nan, struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]),
        (1, 1.0),
        (1, True),
        (0, False),
        ("1", 1),
        ({"1": 0}, {1: 0}),
        ([1], (1,)),
        (["ab"], ["a", "b"]),
        ([[1], 2], [[1, 2]]),
        ({}, []),
        (None, "None"),
        (torch.tensor(0.0), torch.tensor(-0.0)),
        (torch.tensor(1.0), 1.0),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(1), torch.zeros(())),
        (torch.zeros(0, 3), torch.zeros(0)),
        (torch.zeros(2, dtype=torch.float16), torch.zeros(2, dtype=torch.bfloat16)),
        (torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.float32)),
        (
            torch.tensor([0x7FC00000], dtype=torch.int32).view(torch.float32),
            torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32),
        ),
    ],
)
def test_what_differs_in_a_bit_or_a_type_differs(one: Any, other: Any):
    assert digest(one) != digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({2: 0, "2": 1}, {"2": 1, 2: 0}),
        (OrderedDict(a=1), {"a": 1}),
        (Counter({3: 2}), {3: 2}),
        (torch.arange(6).reshape(2, 3).T, torch.tensor([[0, 3], [1, 4], [2, 5]])),
        (torch.arange(10)[::3], torch.tensor([0, 3, 6, 9])),
        (torch.ones(1).expand(4), torch.ones(4)),
        (torch.nn.Parameter(torch.ones(2)), torch.ones(2)),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
        (torch.tensor([1 + 2j]).conj().imag, torch.tensor([-2.0])),
    ],
)
def test_order_of_keys_and_layout_in_memory_do_not_count(one: Any, other: Any):
    assert digest(one) == digest(other)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.complex64,
        torch.float8_e4m3fn,
    ],
)
def test_every_bit_of_every_dtype_counts(dtype: torch.dtype):
    zeros = torch.zeros(3, dtype=dtype)
    seen = {digest(zeros)}
    raw = zeros.view(torch.uint8)
    bits = [1] if dtype == torch.bool else [1 << bit for bit in range(8)]
    for byte in range(raw.numel()):
        for bit in bits:
            raw[byte] ^= bit
            seen.add(digest(zeros))
            raw[byte] ^= bit
    assert len(seen) == 1 + raw.numel() * len(bits)


def test_anything_else_is_an_error_that_names_its_path():
    with pytest.raises(TypeError, match=r"/a/1 is or has as key a object"):
        digest({"a": [0, object()]})
    with pytest.raises(TypeError, match=r"/a is or has as key a tuple"):
        digest({"a": {(1, 2): 0}})


def test_sample_ids_are_digested_as_little_endian_int64():
    ids = np.array([1, 2], dtype=">i8")
    assert sample_digest(ids) == sample_digest(np.array([1, 2], dtype=np.int64))
    assert sample_digest(np.array([1, 2], np.int64)) == "07ee86c281446bef"
    assert sample_digest(np.empty(0, np.int64)) == "2d06800538d394c2"  # xxh3-64 of nothing
