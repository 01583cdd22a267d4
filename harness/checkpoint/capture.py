"""What one rank takes of the state for a save: planned from two trees, then copied.

The copy is what training stops for; writing what was copied (share.py) is others' work.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash
from torch import Tensor

from harness.checkpoint import shards
from harness.checkpoint.buffers import Buffers, Content, specs
from harness.checkpoint.manifest import Place
from harness.checkpoint.memory import Memory
from harness.checkpoint.shards import Piece, Spec
from harness.checkpoint.share import Shard, Share
from harness.checkpoint.tell import said, warn
from harness.checkpoint.tree import flatten

Tree = Callable[[], Any]
"""Gives a tree of the state, as it is now."""

_FAR = Place(10**12, 10**6)
"""No save has a longer name: what has room for its headers has room for every save's."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one rank is to copy, and into which files it goes."""

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
        parts=shards.files(pieces, shard_bytes),
        tensors={**common, **private},
        shared=flat.skeleton,
        own=mine.skeleton,
        layout=_digest(layout),
    )


class Copier:
    """Takes one rank's share at every save, into the same memory."""

    def __init__(self, rank: int, world_size: int, run_id: str, shard_bytes: int) -> None:
        self.shard_bytes = shard_bytes
        self.buffers = Buffers()
        self._rank = rank
        self._world_size = world_size
        self._run_id = run_id
        self._reserved = False

    def reserve(self, shared: Tree, own: Tree) -> None:
        """Get the memory for the first copy, in another thread, before that is due; once."""
        if self._reserved:
            return
        self._reserved = True
        try:
            planned = self._plan(shared, own)
            self.buffers.reserve(self._contents(planned, _FAR), planned.tensors)
        except Exception as error:  # noqa: BLE001  # the save itself will fail, and be told
            warn(f"rank {self._rank} has a state that it will not be able to save: {said(error)}")

    def take(self, place: Place, shared: Tree, own: Tree) -> tuple[Share, Memory]:
        """Copy the share, now; where its bytes are stays as it is until the next call.

        Raises `StateError` for a state that cannot be saved, `OSError` where there is no memory.
        """
        planned = self._plan(shared, own)
        spans, memory = self.buffers.take(self._contents(planned, place), planned.tensors)
        share = Share(
            rank=self._rank,
            shards=[
                Shard(
                    shards.file_name(self._rank, self._world_size, number),
                    part,
                    span.begin,
                    span.header_bytes,
                    span.size_bytes,
                )
                for number, (part, span) in enumerate(zip(planned.parts, spans, strict=True))
            ],
            shared=_json(planned.shared) if self._rank == 0 else "",
            own=_json(planned.own),
            layout=planned.layout,
        )
        return share, memory

    def _plan(self, shared: Tree, own: Tree) -> Plan:
        return plan(shared(), own(), self._rank, self._world_size, self.shard_bytes)

    def _contents(self, planned: Plan, place: Place) -> list[Content]:
        return [
            Content(shards.header(part, about(self._run_id, place, self._rank, number)), part)
            for number, part in enumerate(planned.parts)
        ]


def about(run_id: str, place: Place, rank: int, part: int) -> dict[str, str]:
    """What each shard says of itself in its header, for people; nobody here reads it."""
    numbers = {"step": place.step, "attempt": place.attempt, "rank": rank, "part": part}
    return {"run_id": run_id, **{name: str(number) for name, number in numbers.items()}}


def _json(skeleton: Any) -> str:
    return json.dumps(skeleton, allow_nan=False)


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _digest(layout: Mapping[str, Spec]) -> str:
    lines = (f"{name} {spec.dtype} {spec.shape}\n" for name, spec in layout.items())
    return xxhash.xxh3_64_hexdigest("".join(lines).encode())
