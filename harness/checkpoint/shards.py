"""How tensors are divided over ranks and files, and the safetensors files that hold them.

Every rank computes the same division from the same names, dtypes and shapes. Tensors are cut between
rows of dimension 0 and nowhere else, so any shard opens with the plain safetensors library.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from harness.checkpoint.dtypes import ITEM_BYTES

_LENGTH_BYTES = 8  # little-endian length of the header, then the header, then the data
_ENTRY_BYTES = 120  # a header's entry without the tensor's name, rounded up
_METADATA_BYTES = 400
_KNOWN = 64
"""Divisions that are remembered: one for each file of a rank, and few ranks have more than one."""
_ALIGNMENT_BYTES = 64
"""What a header's length is a multiple of: tensors then begin where the copy is fastest."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What a tensor is, without its values."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Size of dimension 0; a scalar is one row."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape[1:]) * ITEM_BYTES[self.dtype]

    def of_rows(self, rows: int) -> "Spec":
        """The same tensor with other rows; a scalar stays one."""
        return Spec(self.dtype, (rows, *self.shape[1:])) if self.shape else self

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole."""
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `start` to `start + rows` of tensor `name`."""

    name: str
    spec: Spec
    """Of the whole tensor."""
    start: int
    rows: int

    def __hash__(self) -> int:
        """Of what mostly tells two apart: all pieces are looked up at every save."""
        return hash((self.name, self.start))

    @property
    def part(self) -> Spec:
        """Of the piece itself."""
        return self.spec.of_rows(self.rows)


def whole(layout: Mapping[str, Spec]) -> list[Piece]:
    """Every tensor in one piece."""
    return [Piece(name, spec, 0, spec.rows) for name, spec in layout.items()]


def share(layout: Mapping[str, Spec], rank: int, world_size: int) -> list[Piece]:
    """Rank `rank`'s part of tensors that all ranks hold: 1/N of the bytes, to within a row.

    All tensors stand in one line, which is cut into equal lengths; each cut moves to the nearest
    border between two rows.
    """
    total = sum(spec.size_bytes for spec in layout.values())
    first, last = rank * total // world_size, (rank + 1) * total // world_size
    pieces: list[Piece] = []
    position = 0
    for number, (name, spec) in enumerate(layout.items()):
        if spec.size_bytes == 0:
            if number % world_size == rank:
                pieces.append(Piece(name, spec, 0, spec.rows))
            continue
        start = _row_at(first - position, spec)
        stop = _row_at(last - position, spec)
        if stop > start:
            pieces.append(Piece(name, spec, start, stop - start))
        position += spec.size_bytes
    return pieces


def _row_at(offset_bytes: int, spec: Spec) -> int:
    """The border between rows that is nearest to `offset_bytes` from the tensor's begin."""
    nearest = (offset_bytes + spec.row_bytes // 2) // spec.row_bytes
    return min(max(nearest, 0), spec.rows)


def files(pieces: Iterable[Piece], shard_bytes: int) -> list[list[Piece]]:
    """`pieces` in files of at most `shard_bytes`, at least one file.

    A piece is cut only if it exceeds a file of its own; a single row that does is left whole.
    """
    filled: list[list[Piece]] = [[]]
    room = shard_bytes - _METADATA_BYTES
    for piece in pieces:
        overhead = len(piece.name) + _ENTRY_BYTES
        most = max(shard_bytes - _METADATA_BYTES - overhead, 1)
        for part in _cut(piece, most):
            size = part.part.size_bytes + overhead
            if size > room and filled[-1]:
                filled.append([])
                room = shard_bytes - _METADATA_BYTES
            filled[-1].append(part)
            room -= size
    # Larger items first: every tensor then starts at a multiple of its item's size.
    return [sorted(part, key=_alignment) for part in filled]


def _alignment(piece: Piece) -> tuple[int, str]:
    return (-ITEM_BYTES[piece.spec.dtype], piece.name)


def _cut(piece: Piece, most_bytes: int) -> list[Piece]:
    """`piece` in parts of at most `most_bytes`, or of one row."""
    if piece.part.size_bytes <= most_bytes:
        return [piece]
    step = max(most_bytes // piece.spec.row_bytes, 1)
    stop = piece.start + piece.rows
    return [
        Piece(piece.name, piece.spec, start, min(step, stop - start))
        for start in range(piece.start, stop, step)
    ]


def file_name(rank: int, world_size: int, part: int) -> str:
    """`shard-00000-of-00002.safetensors`, and `…-part-1.safetensors` for what it had no room for."""
    more = f"-part-{part}" if part else ""
    return f"shard-{rank:05d}-of-{world_size:05d}{more}.safetensors"


def header(pieces: Sequence[Piece], metadata: Mapping[str, str]) -> bytes:
    """What a safetensors file begins with; the pieces' bytes follow in order, without a gap."""
    about = _json({"__metadata__": {"format": "pt", **metadata}})
    entries = _entries(tuple(pieces))
    text = f"{about[:-1]},{entries[1:]}".encode() if pieces else about.encode()
    text += b" " * (-(_LENGTH_BYTES + len(text)) % _ALIGNMENT_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


@lru_cache(maxsize=_KNOWN)
def _entries(pieces: tuple[Piece, ...]) -> str:
    """What a header says of them; the same at every save, and training waits for it."""
    entries: dict[str, object] = {}
    position = 0
    for piece, size in zip(pieces, sizes(pieces), strict=True):
        entries[piece.name] = {
            "dtype": piece.spec.dtype,
            "shape": piece.part.shape,
            "data_offsets": (position, position + size),
        }
        position += size
    return _json(entries)


@lru_cache(maxsize=_KNOWN)
def sizes(pieces: tuple[Piece, ...]) -> Sequence[int]:
    """Bytes of each."""
    return [piece.part.size_bytes for piece in pieces]


def _json(of: Mapping[str, object]) -> str:
    return json.dumps(of, separators=(",", ":"))
