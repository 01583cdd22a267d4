"""Lengths of many tensors at once; and by them, whether all that they hold is finite."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from harness.signals.late import Late


def lengths(tensors: Sequence[Tensor]) -> Tensor:
    """Of each of at least one, in double precision on the device of the first.

    Squares are added up in single precision, or in double if that is the tensor's own: torch adds up
    in no narrower one.
    """
    with torch.no_grad():
        reals = [torch.view_as_real(it) if it.is_complex() else it for it in tensors]
        dtypes = {_sum_dtype(it) for it in reals}
        if len(dtypes) == 1:
            norms = list(torch._foreach_norm(reals, 2.0, dtype=dtypes.pop()))
        else:
            norms = [torch.linalg.vector_norm(it, dtype=torch.float64) for it in reals]
        return torch.stack([norm.to(norms[0].device) for norm in norms]).double()


def not_finite(tensors: Sequence[Tensor]) -> list[int]:
    """Positions of those that hold NaN or Inf; waits for their device."""
    if not tensors:
        return []
    found = enumerate(Late(lengths(tensors)).read())
    suspects = [place for place, length in found if not math.isfinite(length)]
    # A length may be too long for its precision where no number is.
    return [place for place in suspects if not bool(tensors[place].isfinite().all())]


def _sum_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype is torch.float64 else torch.float32
