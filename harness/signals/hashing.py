"""One 64-bit number for the bits of many tensors, made where they live.

On a CPU it is xxh3. On an accelerator it is a sum of the words, each times an odd number of its own,
modulo 2⁶⁴: addition of integers has no order, so the same bits give the same number, and a change of
one bit moves it by an odd number times a power of two, which is never nothing.
"""

from collections.abc import Sequence

import torch
import xxhash
from torch import Tensor

from harness.digest import plain_bytes

_CHUNK = 1 << 24
"""Words at a time: each takes 24 bytes more while it is summed."""
_SPREAD = 0x9E3779B97F4A7C15 - (1 << 64)
"""2⁶⁴ by the golden ratio, odd: neighbours get weights that have nothing to do with each other."""
_MIX = 0x5851F42D4C957F2D


def hashed(tensors: Sequence[Tensor]) -> Tensor:
    """A scalar of int64 on the device of `tensors`, of which there is at least one."""
    if tensors[0].device.type != "cpu":
        return summed(tensors)
    state = xxhash.xxh3_64()
    for tensor in tensors:
        state.update(plain_bytes(tensor))
    return torch.tensor(state.intdigest() - (1 << 63))


def summed(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of words, by operations that every device has."""
    total = torch.zeros((), dtype=torch.int64, device=tensors[0].device)
    for tensor in tensors:
        total = total * _MIX + _sum(_words(tensor.detach()))
    return total


def _words(tensor: Tensor) -> Tensor:
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    for kind, size in ((torch.int32, 4), (torch.int16, 2)):
        if flat.numel() % size == 0:
            return flat.view(kind)
    return flat


def _sum(words: Tensor) -> Tensor:
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for start in range(0, words.numel(), _CHUNK):
        chunk = words[start : start + _CHUNK].to(torch.int64)
        places = torch.arange(start + 1, start + 1 + chunk.numel(), device=words.device)
        weights = places.mul_(_SPREAD)
        weights = weights.bitwise_xor_(weights >> 29).bitwise_or_(1)
        total = total + weights.mul_(chunk).sum()
    return total
