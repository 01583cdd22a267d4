"""One rank's share of one save: what it copied, and what it reports once that is written."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash
from torch import Tensor

from harness.checkpoint import shards
from harness.checkpoint.buffers import Buffers
from harness.checkpoint.manifest import FileRecord, PieceRecord, Place, TensorRecord
from harness.checkpoint.shards import Piece, Spec
from harness.checkpoint.store import Store
from harness.checkpoint.tree import flatten
from harness.points import Point, reach


@dataclass(frozen=True, slots=True)
class Shard:
    """One file to write."""

    name: str
    pieces: Sequence[Piece]
    header: bytes
    data: memoryview
    """In the rank's buffers, which must stay as they are until it is written."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank copied of the state."""

    rank: int
    shards: Sequence[Shard]
    shared: Any
    """Skeleton of the tree that all ranks hold alike."""
    own: Any
    """Skeleton of this rank's own tree."""
    layout: str
    """Digest of what is shared; ranks that differ in it divided different things."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a rank tells rank 0 of its share."""

    rank: int
    failure: str | None = None
    files: Mapping[str, FileRecord] = field(default_factory=dict)
    tensors: Mapping[str, TensorRecord] = field(default_factory=dict)
    """With this rank's pieces alone."""
    shared: str = ""
    """Skeleton as JSON; from rank 0 alone."""
    own: str = ""
    layout: str = ""


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
    layout = shards.specs(common)
    pieces = shards.share(layout, rank, world_size) + shards.whole(shards.specs(private))
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


def write(share: Share, place: Place, store: Store) -> Report:
    """Write the share durably; what to report of it."""
    files: dict[str, FileRecord] = {}
    tensors: dict[str, TensorRecord] = {}
    for shard in share.shards:
        files[shard.name] = store.write(f"{place.name}/{shard.name}", _content(shard))
        begin = len(shard.header)
        for piece in shard.pieces:
            before = tensors[piece.name].pieces if piece.name in tensors else ()
            where = PieceRecord(shard.name, piece.name, piece.start, piece.rows, begin)
            begin += piece.part.size_bytes
            tensors[piece.name] = TensorRecord(piece.spec.dtype, piece.spec.shape, (*before, where))
    store.sync(place.name)
    shared = json.dumps(share.shared, allow_nan=False) if share.rank == 0 else ""
    own = json.dumps(share.own, allow_nan=False)
    return Report(share.rank, None, files, tensors, shared, own, share.layout)


def _content(shard: Shard) -> Iterator[bytes | memoryview]:
    yield shard.header
    reach(Point.SAVE_SHARD)  # with the file half written
    yield shard.data


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _digest(layout: Mapping[str, Spec]) -> str:
    lines = (f"{name} {spec.dtype} {spec.shape}\n" for name, spec in layout.items())
    return xxhash.xxh3_64_hexdigest("".join(lines).encode())
