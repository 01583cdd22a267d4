"""The only source of chance: a draw is a function of (seed, purpose, index) and of nothing else."""

import hashlib


def share(seed: int, purpose: str, index: int) -> float:
    """The draw number `index` for `purpose`: uniform in [0, 1), of 53 bits."""
    drawn = hashlib.blake2b(f"{seed}/{purpose}/{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(drawn, "big") >> 11) / 2**53
