import pytest

from harness.signals.blocks import block, grouped


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("model.blocks.3.attention.weight", "model.blocks.3"),
        ("model.encoder.layers.11.mlp.0.weight", "model.encoder.layers.11"),
        ("model.head.bias", "model.head"),
        ("model.0.weight", "model.0"),
        ("model.weight", "model.weight"),
        ("weight", "weight"),
    ],
)
def test_a_parameter_belongs_to_the_block_at_the_first_number_in_its_name(name, of):
    assert block(name) == of


def test_groups_are_all_then_each_block_then_what_is_asked_for():
    names = ["m.a.0.w", "m.a.0.b", "m.a.1.w", "m.head.w"]
    assert grouped(names, ["m.a.0.b"]) == {
        "all": [0, 1, 2, 3],
        "m.a.0": [0, 1],
        "m.a.1": [2],
        "m.head": [3],
        "m.a.0.b": [1],
    }
