"""What one rank takes of the state for a save: planned from two trees, then copied.

The copy is what training stops for; writing what was copied (share.py) is others' work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash
from torch import Tensor

from harness.checkpoint import shards
from harness.checkpoint.buffers import Buffers, specs
from harness.checkpoint.manifest import Place
from harness.checkpoint.shards import Piece, Spec
from harness.checkpoint.share import Shard, Share
from harness.checkpoint.tree import flatten


@dataclass(frozen=True, slots=True)
class Plan:
    """What one rank is to copy, and into which files it goes."""

    rank: int
    world_size: int
    parts: Sequence[Sequence[Piece]]
    tensors: Mapping[str, Tensor]
    """The job's own memory, by name in the checkpoint."""
    shared: Any
    own: Any
    layout: str


def plan(shared: Any, own: Any, rank: int, world_size: int, shard_bytes: int) -> Plan:
    """Rank `rank`'s share of the state in these two trees. Raises `StateError`."""
    flat, mine = flatten(shared), flatten(own)
    common = _prefixed("shared/", flat.tensors)
    private = _prefixed(f"rank-{rank}/", mine.tensors)
    layout = specs(common)
    pieces = shards.share(layout, rank, world_size) + shards.whole(specs(private))
    return Plan(
        rank=rank,
        world_size=world_size,
        parts=shards.files(pieces, shard_bytes),
        tensors={**common, **private},
        shared=flat.skeleton,
        own=mine.skeleton,
        layout=_digest(layout),
    )


def take(planned: Plan, place: Place, run_id: str, buffers: Buffers) -> Share:
    """Copy the share into `buffers`, now."""
    rank, world_size = planned.rank, planned.world_size
    copied = buffers.take(planned.parts, planned.tensors)
    save = {"run_id": run_id, "step": str(place.step), "attempt": str(place.attempt)}
    return Share(
        rank=rank,
        shards=[
            Shard(
                shards.file_name(rank, world_size, number),
                part,
                shards.header(part, {**save, "rank": str(rank), "part": str(number)}),
                data,
            )
            for number, (part, data) in enumerate(zip(planned.parts, copied, strict=True))
        ],
        shared=planned.shared,
        own=planned.own,
        layout=planned.layout,
    )


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _digest(layout: Mapping[str, Spec]) -> str:
    lines = (f"{name} {spec.dtype} {spec.shape}\n" for name, spec in layout.items())
    return xxhash.xxh3_64_hexdigest("".join(lines).encode())
