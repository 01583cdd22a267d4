import math

import pytest
import torch

from harness.signals.lengths import lengths, not_finite


def test_lengths_by_hand_of_real_and_complex_and_empty_tensors():
    tensors = [torch.tensor([3.0, 4.0]), torch.tensor([3 + 4j, 0j]), torch.empty(0)]
    assert lengths(tensors).tolist() == [5.0, 5.0, 0.0]
    double = torch.tensor([30.0, 40.0], dtype=torch.float64)
    assert lengths([double]).tolist() == [50.0]
    assert lengths([tensors[0], double, tensors[1]]).tolist() == [5.0, 50.0, 5.0]
    parameter = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    assert lengths([parameter]).tolist() == [2.0]
    assert not lengths([parameter]).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("wild", [math.nan, math.inf, -math.inf])
def test_one_number_that_is_none_is_found_among_many(dtype: torch.dtype, wild: float):
    tensors = [torch.ones(300, dtype=dtype) for _ in range(3)]
    assert not_finite(tensors) == []
    tensors[1][207] = wild
    assert not_finite(tensors) == [1]


def test_long_is_not_infinite_and_nothing_is_finite():
    assert not_finite([torch.full((9,), 3e38), torch.full((9,), 1e200, dtype=torch.float64)]) == []
    assert not_finite([]) == []
