import json
import math
import random
import struct
from collections import Counter, OrderedDict, defaultdict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.checkpoint.dtypes import ITEM_BYTES
from harness.checkpoint.flattener import Flattener
from harness.checkpoint.tree import DTYPES, Flat, StateError, flatten, unflatten


def again(tree: Any) -> Any:
    """The tree after a round trip through JSON text."""
    flat = flatten(tree)
    skeleton = json.loads(json.dumps(flat.skeleton, allow_nan=False))
    return unflatten(skeleton, {name: tensor.clone() for name, tensor in flat.tensors.items()})


def same(a: Any, b: Any) -> bool:
    """Equal in type and, to the last bit, in value."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, dict):
        return [(type(k), k) for k in a] == [(type(k), k) for k in b] and all(
            same(a[key], b[key]) for key in a
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def tensors() -> st.SearchStrategy[Tensor]:
    shapes = st.lists(st.integers(0, 3), max_size=3)
    return st.builds(
        lambda shape, name, seed: torch.randint(
            0, 2, shape, generator=torch.Generator().manual_seed(seed)
        ).to(DTYPES[name]),
        shapes,
        st.sampled_from(sorted(DTYPES)),
        st.integers(0, 99),
    )


def test_every_dtype_is_as_large_as_is_told_without_torch():
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == ITEM_BYTES


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())
keys = st.text(st.characters(), max_size=4) | st.sampled_from(["$tensor", "$", "~", "a/b"])
trees = st.recursive(
    scalars | tensors(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys | st.integers(), inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3).map(OrderedDict)
    ),
    max_leaves=12,
)


@given(trees)
def test_any_tree_comes_back_in_type_and_to_the_last_bit(tree):
    assert same(again(tree), tree)


def assert_flattens_like_the_first_time(flattener: Flattener, tree: Any) -> None:
    fast, slow = flattener.flatten(tree), flatten(tree)
    assert same(json.loads(fast.text), slow.skeleton)
    assert list(fast.tensors) == list(slow.tensors)
    for name, tensor in slow.tensors.items():
        mine = fast.tensors[name]
        assert same(mine, tensor)
        assert (mine.data_ptr(), mine.stride()) == (tensor.data_ptr(), tensor.stride())
        assert not mine.requires_grad


@given(trees, trees)
def test_trees_that_are_taken_apart_one_after_the_other_are_like_each_alone(one, other):
    flattener = Flattener()
    for tree in (one, one, other, one, other, other):
        assert_flattens_like_the_first_time(flattener, tree)


def test_a_tree_that_is_almost_the_last_one_is_not_taken_for_it():
    a, b, nan = torch.ones(2), torch.ones(2), struct.unpack(">d", b"\x7f\xf8" + b"\1" * 6)[0]
    alike: list[list[Any]] = [
        [0.0, -0.0, math.nan, nan, 0, False],
        [
            {"x": a, "y": b},
            {"x": a, "z": b},
            {"x": a, "y": a},
            {"y": b, "x": a},
            OrderedDict(x=a, y=b),
        ],
        [[a, b], (a, b), [b, a], [a, a], [a, b, 1], [a, nn.Parameter(b)], [a[:1], b], [a.int(), b]],
        [{1: a}, {"1": a}, {True: a}.fromkeys([1], a), {"x": {}}, {"x": []}, {"x": None}],
        [torch.empty(0), [torch.empty(0), torch.empty(0)], torch.ones(4)[::2], torch.ones(2, 2)],
    ]
    flattener = Flattener()
    for trees in alike:
        for one in trees:
            for other in trees:
                assert_flattens_like_the_first_time(flattener, one)
                assert_flattens_like_the_first_time(flattener, other)


def test_memory_that_was_put_in_place_of_other_is_what_is_taken():
    weights, flattener = nn.Parameter(torch.zeros(3)), Flattener()
    before = flattener.flatten({"w": weights})
    weights.data = torch.ones(3)
    after = flattener.flatten({"w": weights})

    assert before.tensors["w"].tolist() == [0, 0, 0]
    assert after.tensors["w"].tolist() == [1, 1, 1]


def test_values_that_lie_elsewhere_each_time_are_no_other_form():
    flattener = Flattener()
    trees = [{"stream": torch.full((4,), n), "tied": [torch.zeros(2)] * 2} for n in range(3)]
    first, *later = [flattener.flatten(tree) for tree in trees]

    assert all(flat.form is first.form for flat in later)
    assert [int(flat.tensors["stream"][0]) for flat in (first, *later)] == [0, 1, 2]


def test_what_is_as_it_was_is_not_named_again():
    flattener, tree = Flattener(), {"a": torch.ones(2), "tied": [torch.zeros(3)] * 2, "lr": 0.1}
    first = flattener.flatten(tree)
    again = flattener.flatten(tree)
    assert (again.form, again.text) == (first.form, first.text)
    assert again.form is first.form
    later = flattener.flatten(tree | {"lr": 0.2})
    assert later.form is first.form
    assert '"lr":0.2}' in later.text


def revalued(node: Any, data: st.DataObject) -> Any:
    """The same form with other values."""
    if isinstance(node, Tensor):
        return node
    if isinstance(node, dict):
        return type(node)((key, revalued(item, data)) for key, item in node.items())
    if isinstance(node, list | tuple):
        return type(node)(revalued(item, data) for item in node)
    others = {bool: st.booleans(), int: st.integers(), float: st.floats()}
    return data.draw(others.get(type(node), st.text() if isinstance(node, str) else st.none()))


@given(trees, st.data())
def test_trees_that_differ_in_their_values_are_each_described_by_their_own(tree, data):
    flattener = Flattener()
    for one in (tree, revalued(tree, data), revalued(tree, data), tree):
        assert_flattens_like_the_first_time(flattener, one)


def test_what_looks_like_the_place_of_a_value_is_no_place():
    flattener = Flattener()
    for number in (1, 2, 3):
        tree = {"a": "\ue0000\ue000", "\ue0001\ue000": number, "b": [number, "\ue0001\ue000"]}
        assert_flattens_like_the_first_time(flattener, tree)


def test_what_cannot_be_saved_is_refused_after_what_could():
    flattener = Flattener()
    flattener.flatten({"a": 1})
    with pytest.raises(StateError, match="a: set is not a kind of state"):
        flattener.flatten({"a": {1}})
    assert_flattens_like_the_first_time(flattener, {"a": 1})


def test_a_tree_worked_by_hand():
    weight = torch.arange(6.0).view(2, 3)
    flat = flatten(
        {
            "model": {"w": weight, "tied": weight, "steps": torch.tensor(7)},
            "betas": (0.9, math.inf),
            "state": {0: [None, True, 2**53]},
            "$odd": "x",
        }
    )

    assert flat.skeleton == {
        "$dict": [
            [
                "model",
                {
                    "w": {"$tensor": "model/w"},
                    "tied": {"$tensor": "model/w"},
                    "steps": {"$tensor": "model/steps"},
                },
            ],
            ["betas", {"$tuple": [0.9, {"$float": "7ff0000000000000"}]}],
            ["state", {"$dict": [[0, [None, True, {"$int": "0x20000000000000"}]]]}],
            ["$odd", "x"],
        ]
    }
    assert list(flat.tensors) == ["model/w", "model/steps"]


def test_tied_tensors_are_kept_once_and_come_back_as_one():
    module = nn.Linear(2, 2, bias=False)
    tree = again({"a": module.weight, "b": module.weight.data, "c": module.weight.t()})

    assert tree["a"] is tree["b"]
    assert tree["c"] is not tree["a"]
    assert torch.equal(tree["c"], module.weight.detach().t())


def test_empty_tensors_are_never_taken_for_tied():
    tree = again({"a": torch.empty(0), "b": torch.empty(0, 3), "c": torch.empty(0)})

    assert [tuple(tree[key].shape) for key in "abc"] == [(0,), (0, 3), (0,)]
    assert tree["a"] is not tree["c"]


def test_nothing_is_copied_and_gradients_are_left_behind():
    weight = nn.Parameter(torch.ones(2))
    flat = flatten({"w": weight})

    assert flat.tensors["w"].data_ptr() == weight.data_ptr()
    assert not flat.tensors["w"].requires_grad


def test_keys_that_would_make_one_name_make_two():
    tree = {1: torch.ones(1), "1": torch.zeros(1), "a/b": torch.ones(2), "a": {"b": torch.ones(3)}}

    assert list(flatten(tree).tensors) == ["1", "1~2", "a~1b", "a/b"]
    assert same(again(tree), tree)


@pytest.mark.parametrize("key", ["", "__metadata__", "\ud800", "é\n"])
def test_awkward_keys_still_make_names_that_a_shard_can_hold(key):
    (name,) = flatten({key: torch.ones(1)}).tensors

    assert name not in ("", "__metadata__")
    assert name.encode("utf-8")


def test_a_tree_may_be_a_single_tensor_or_number():
    assert same(again(torch.ones(2)), torch.ones(2))
    assert again(3) == 3


def test_integers_of_any_size_come_back():
    huge = 7**6000  # more digits than Python writes in decimal
    assert again([huge, -huge, 2**53 - 1, -(2**53)]) == [huge, -huge, 2**53 - 1, -(2**53)]
    assert again({huge: torch.ones(1)}) == {huge: torch.ones(1)}


def test_not_a_number_keeps_its_bits():
    odd = struct.unpack(">d", bytes.fromhex("fff8000000000abc"))[0]
    assert same(again([odd, -0.0, 5e-324]), [odd, -0.0, 5e-324])


def test_pythons_random_state_is_accepted_again():
    source = random.Random(3)
    source.gauss(0, 1)
    state = again(source.getstate())
    expected = [source.random() for _ in range(5)]

    other = random.Random()
    other.setstate(state)
    assert [other.random() for _ in range(5)] == expected


def test_state_dicts_of_schedulers_come_back_as_they_were():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    tree = again(schedule.state_dict())

    assert type(tree["milestones"]) is Counter
    schedule.load_state_dict(tree)


def test_every_path_that_cannot_be_saved_is_named():
    class DTensor(Tensor):
        pass

    pair = namedtuple("pair", ["a", "b"])
    loop: list[Any] = []
    loop.append(loop)
    tree = {
        "array": np.ones(2),
        "nested": [{"set": {1}}, object],
        "named": pair(1, 2),
        "missing": defaultdict(int),
        "number": np.float64(1.0),
        "sharded": torch.ones(2).as_subclass(DTensor),
        "sparse": torch.eye(2).to_sparse(),
        "meta": torch.ones(2, device="meta"),
        "complex": torch.ones(2, dtype=torch.complex128),
        "loop": loop,
        "keys": {1.5: 0, True: 0, None: 0},
        "fine": 1,
    }

    with pytest.raises(StateError) as caught:
        flatten(tree)

    assert [path for path, _ in caught.value.problems] == [
        "array",
        "nested/0/set",
        "nested/1",
        "named",
        "missing",
        "number",
        "sharded",
        "sparse",
        "meta",
        "complex",
        "loop/0",
        "keys/1.5",
        "keys/True",
        "keys/None",
    ]
    said = str(caught.value)
    assert "array: numpy.ndarray is not a kind of state" in said
    assert "sharded: DTensor: FSDP and tensor parallel are not supported yet; use DDP" in said
    assert isinstance(caught.value, ValueError)


def test_a_tag_of_the_future_is_refused_by_name():
    with pytest.raises(ValueError, match=r"unknown tag '\$set'"):
        unflatten({"$set": []}, {})


def test_a_tensor_that_no_shard_holds_is_an_error():
    with pytest.raises(ValueError, match="'a/b', which no shard holds"):
        unflatten({"$tensor": "a/b"}, {})


def test_views_that_are_not_contiguous_are_taken_as_they_read():
    base = torch.arange(12).view(3, 4)
    tree = {"t": base.t(), "column": base[:, 1], "flipped": torch.ones(2).expand(3, 2)}

    assert same(again(tree), {key: value.contiguous() for key, value in tree.items()})
    assert isinstance(flatten(tree), Flat)
