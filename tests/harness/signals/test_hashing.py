import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.signals import hashing
from harness.signals.hashing import hashed, summed

TENSORS = [torch.arange(7.0), torch.tensor([[1.0, -0.0], [3.0, 4.0]]), torch.ones(3).bfloat16()]


@pytest.mark.parametrize("hashing_of", [hashed, summed])
@given(which=st.integers(0, 2), data=st.data())
def test_any_one_bit_makes_another_number(hashing_of, which, data):
    changed = [tensor.clone() for tensor in TENSORS]
    octets = changed[which].reshape(-1).view(torch.uint8)
    place = data.draw(st.integers(0, octets.numel() - 1))
    octets[place] ^= 1 << data.draw(st.integers(0, 7))
    assert int(hashing_of(changed)) != int(hashing_of(TENSORS))
    octets[place] = TENSORS[which].reshape(-1).view(torch.uint8)[place]
    assert int(hashing_of(changed)) == int(hashing_of(TENSORS))


@pytest.mark.parametrize("hashing_of", [hashed, summed])
def test_the_order_of_words_and_of_tensors_counts(hashing_of):
    assert int(hashing_of([torch.tensor([1.0, 2.0])])) != int(
        hashing_of([torch.tensor([2.0, 1.0])])
    )
    assert int(hashing_of(TENSORS)) != int(hashing_of(TENSORS[::-1]))


def test_a_sum_in_chunks_is_that_of_the_whole(monkeypatch):
    whole = int(summed(TENSORS))
    monkeypatch.setattr(hashing, "_CHUNK", 2)
    assert int(summed(TENSORS)) == whole


def test_how_a_tensor_lies_in_memory_does_not_count():
    lying = torch.arange(6.0).reshape(2, 3)
    assert int(summed([lying.t()])) == int(summed([lying.t().contiguous()]))
    assert int(hashed([lying.t()])) == int(hashed([lying.t().contiguous()]))
