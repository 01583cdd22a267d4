"""Where the simulator's chance comes from: uniform numbers in [0, 1), the same for the same seed.

Failures have a stream of their own, so that no option shifts a failure. It is mulberry32, the
generator of the textbook simulator, so that its runs can be repeated to the last failure.
"""

import random
from collections.abc import Callable

from harness.quantities import checked

Draw = Callable[[], float]
"""Gives the next number of a stream."""

SEEDS = 1 << 32
"""How many seeds mulberry32 has."""

_MASK = SEEDS - 1


def mulberry32(seed: int) -> Draw:
    """The stream of T. Ettinger's mulberry32, which has a period of 2³² numbers (public domain, 2017)."""
    state = valid_seed(seed)

    def draw() -> float:
        nonlocal state
        state = (state + 0x6D2B79F5) & _MASK
        t = state
        t = ((t ^ (t >> 15)) * (t | 1)) & _MASK
        t ^= (t + ((t ^ (t >> 7)) * (t | 61))) & _MASK
        return (t ^ (t >> 14)) / SEEDS

    return draw


def stream(seed: int, purpose: str) -> Draw:
    """A stream for one purpose, independent of the failures and of every other purpose."""
    return random.Random(f"{valid_seed(seed)} {purpose}").random  # noqa: S311  # a simulation, no secret


def valid_seed(seed: int) -> int:
    """`seed`, if mulberry32 has it. Raises `ValueError` if not."""
    if seed != int(checked("seed", seed, at_least=0, at_most=SEEDS - 1)):
        raise ValueError(f"seed = {seed!r} is not a whole number: seeds are counted")
    return int(seed)
