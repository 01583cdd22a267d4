"""Decides the order of an epoch: a shuffle that is computed, not stored.

It depends on seed, epoch and length alone, costs the same anywhere in the epoch, and needs no
memory, however many samples there are.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_SHIFT = np.uint64(33)


def permutation(
    indices: NDArray[np.int64], length: int, *, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Where each of `indices` comes in the shuffled order of range(`length`), without a list.

    A Feistel network (Luby and Rackoff 1988) permutes the numbers of just enough bits; those that
    land outside the range walk on until they land in it (Black and Rogaway 2002), which keeps it
    one to one.
    """
    if length == 1:
        return np.zeros_like(indices)
    bits = max(4, (length - 1).bit_length())
    keys = _round_keys(seed, epoch)
    found = indices.astype(np.uint64)
    outside = np.ones(found.shape, dtype=np.bool_)
    while outside.any():
        found[outside] = _feistel(found[outside], bits, keys)
        outside = found >= length
    return found.astype(np.int64)


def _feistel(values: NDArray[np.uint64], bits: int, keys: tuple[np.uint64, ...]) -> Any:
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << bits // 2) - 1)
    high_mask = np.uint64((1 << bits - bits // 2) - 1)
    low, high = values & low_mask, values >> low_bits
    for even, odd in zip(keys[::2], keys[1::2], strict=True):
        low = low ^ (_mixed(high ^ even) & low_mask)
        high = high ^ (_mixed(low ^ odd) & high_mask)
    return (high << low_bits) | low


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """MurmurHash3's 64-bit finaliser: every bit of the input moves about half of the output's."""
    for multiplier in _MULTIPLIERS:
        values = (values ^ (values >> _SHIFT)) * multiplier
    return values ^ (values >> _SHIFT)


@lru_cache(maxsize=8)
def _round_keys(seed: int, epoch: int) -> tuple[np.uint64, ...]:
    return tuple(np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64))
