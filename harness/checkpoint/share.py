"""One rank's share of one save: what it copied, and what it reports once that is written."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.checkpoint.manifest import FileRecord, PieceRecord, Place, TensorRecord
from harness.checkpoint.shards import Piece
from harness.checkpoint.store import Store
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
