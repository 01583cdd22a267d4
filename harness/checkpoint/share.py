"""One rank's share of one save: what it copied, how that is written, and what is reported of it.

A share is a description alone. The bytes lie in the memory of the copy, each shard's in one piece, so
whoever writes them needs no copy of its own and may be another process.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.checkpoint.manifest import FileRecord, PieceRecord, Place, TensorRecord
from harness.checkpoint.shards import Piece
from harness.checkpoint.store import Store
from harness.points import Point, reach

_PORTION_BYTES = 32 << 20
"""How much is written before anyone asks whether to go on."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One file to write: a safetensors header and what it describes."""

    name: str
    pieces: Sequence[Piece]
    begin: int
    """Where in the memory it begins."""
    header_bytes: int
    size_bytes: int
    """Of all of it."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank copied of the state."""

    rank: int
    shards: Sequence[Shard]
    shared: str
    """Skeleton, as JSON, of the tree that all ranks hold alike; from rank 0 alone."""
    own: str
    """Skeleton of this rank's own tree."""
    layout: str
    """Digest of what is shared; ranks that differ in it divided different things."""


@dataclass(frozen=True, slots=True)
class Report:
    """What is known of a rank's share once it is written, or why there is none."""

    rank: int
    failure: str | None = None
    files: Mapping[str, FileRecord] = field(default_factory=dict)
    tensors: Mapping[str, TensorRecord] = field(default_factory=dict)
    """With this rank's pieces alone."""
    shared: str = ""
    own: str = ""
    layout: str = ""


def write(
    share: Share,
    memory: memoryview,
    place: Place,
    store: Store,
    go_on: Callable[[], None] | None = None,
) -> Report:
    """Write the share durably; what to report of it. `go_on` is as for `write_shard`."""
    files = {shard.name: write_shard(shard, memory, place, store, go_on) for shard in share.shards}
    return report(share, files)


def write_shard(
    shard: Shard,
    memory: memoryview,
    place: Place,
    store: Store,
    go_on: Callable[[], None] | None = None,
) -> FileRecord:
    """Write one file; `go_on` is called every now and then, and raises to have that end."""
    content = memory[shard.begin : shard.begin + shard.size_bytes]
    written = store.write(f"{place.name}/{shard.name}", _portions(content, go_on))
    reach(Point.SAVE_BETWEEN)
    return written


def report(share: Share, files: Mapping[str, FileRecord]) -> Report:
    """What to say of a share whose shards are written as `files`."""
    tensors: dict[str, TensorRecord] = {}
    for shard in share.shards:
        begin = shard.header_bytes
        for piece in shard.pieces:
            before = tensors[piece.name].pieces if piece.name in tensors else ()
            where = PieceRecord(shard.name, piece.name, piece.start, piece.rows, begin)
            begin += piece.part.size_bytes
            tensors[piece.name] = TensorRecord(piece.spec.dtype, piece.spec.shape, (*before, where))
    return Report(share.rank, None, files, tensors, share.shared, share.own, share.layout)


def reports(
    shares: Sequence[Share], names: Sequence[str], written: Sequence[FileRecord]
) -> list[Report]:
    """The same for all ranks; `names` are those of all files, in the order of `written`."""
    files = dict(zip(names, written, strict=True))
    return [
        report(share, {shard.name: files[shard.name] for shard in share.shards}) for share in shares
    ]


def _portions(content: memoryview, go_on: Callable[[], None] | None) -> Iterator[memoryview]:
    half, end = len(content) // 2, len(content)
    for start, stop in ((0, half), (half, end)):
        if start == half:
            reach(Point.SAVE_SHARD)
        for begin in range(start, stop, _PORTION_BYTES):
            if go_on is not None:
                go_on()
            yield content[begin : min(begin + _PORTION_BYTES, stop)]
