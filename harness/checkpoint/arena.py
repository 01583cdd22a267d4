"""Memory that the ranks of one node share while they read a checkpoint.

It has no name, so nothing of it outlives the ranks however they die. All write into it what they read;
afterwards each rank sees it through a mapping of its own, in which what it writes is its alone.
"""

import errno
import mmap
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from harness.checkpoint.files import Sink
from harness.checkpoint.manifest import STATE, Manifest
from harness.checkpoint.shards import Spec

_ALIGNMENT_BYTES = 64
_NAME = "harness-restore"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything lies in the memory (pure)."""

    tensors: Mapping[str, int]
    """Where each tensor begins."""
    state: tuple[int, int]
    """Begin and end of the state's JSON."""
    size_bytes: int


def owner_of(manifest: Manifest, rank: int) -> int:
    """Whose own state `rank` takes: its own, or rank 0's where it took no part in the save."""
    return rank if rank < manifest.world_size else 0


def layout(manifest: Manifest, ranks: Iterable[int]) -> Layout:
    """Room for what all ranks share, and for what `ranks` have of their own, one after the other."""
    owners = sorted({owner_of(manifest, rank) for rank in ranks})
    kept = ("shared/", *(f"rank-{owner}/" for owner in owners))
    begins: dict[str, int] = {}
    position = 0
    for name, tensor in manifest.tensors.items():
        if name.startswith(kept):
            begins[name] = position
            position += Spec(tensor.dtype, tensor.shape).size_bytes
            position += -position % _ALIGNMENT_BYTES
    end = position + manifest.files[STATE].size
    return Layout(begins, (position, end), end)


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a file that are kept, and where in the memory they go."""

    begin: int
    end: int
    to: int


def spans(manifest: Manifest, where: Layout) -> dict[str, list[Span]]:
    """What is kept of each file, in order."""
    found = {STATE: [Span(0, manifest.files[STATE].size, where.state[0])]}
    for name, begin in where.tensors.items():
        tensor = manifest.tensors[name]
        row_bytes = Spec(tensor.dtype, tensor.shape).row_bytes
        for piece in tensor.pieces:
            size = piece.rows * row_bytes
            span = Span(piece.begin, piece.begin + size, begin + piece.offset * row_bytes)
            if size:
                found.setdefault(piece.file, []).append(span)
    return {name: sorted(kept, key=lambda span: span.begin) for name, kept in found.items()}


def scattered(kept: Sequence[Span], begin: int, size: int) -> Iterator[tuple[int, slice]]:
    """Where in the memory which parts go, of a portion of `size` bytes that begins at `begin`."""
    first = bisect_right(kept, begin, key=lambda span: span.end)
    for span in islice(kept, first, None):
        if span.begin >= begin + size:
            return
        start, stop = max(span.begin, begin), min(span.end, begin + size)
        yield span.to + start - span.begin, slice(start - begin, stop - begin)


@dataclass(frozen=True, slots=True)
class Address:
    """Where another process of this node finds an arena, and how long the manifest in it is."""

    pid: int
    descriptor: int
    size_bytes: int
    manifest_bytes: int


class Arena:
    """One rank's hold on the memory; `close` it, or leave its block, to let go."""

    def __init__(
        self, address: Address, descriptor: int, manifest: Manifest, where: Layout
    ) -> None:
        self.address = address
        self.manifest = manifest
        self.layout = where
        self._descriptor = descriptor

    @classmethod
    def create(cls, manifest: Manifest, ranks: Iterable[int]) -> "Arena":
        """Memory for what `ranks` need, with the manifest behind it for those who open it."""
        where = layout(manifest, ranks)
        described = msgspec.json.encode(manifest)
        descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, where.size_bytes)
            os.pwrite(descriptor, described, where.size_bytes)
        except BaseException:
            os.close(descriptor)
            raise
        address = Address(os.getpid(), descriptor, where.size_bytes, len(described))
        return cls(address, descriptor, manifest, where)

    @classmethod
    def open(cls, address: Address, ranks: Iterable[int]) -> "Arena":
        """The memory that another rank has made for `ranks`. Raises `OSError` if it is gone."""
        path = Path(f"/proc/{address.pid}/fd/{address.descriptor}")
        if not str(path.readlink()).startswith(f"/memfd:{_NAME}"):
            raise FileNotFoundError(errno.ENOENT, "not the memory that was made", str(path))
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            described = os.pread(descriptor, address.manifest_bytes, address.size_bytes)
            manifest = msgspec.json.decode(described, type=Manifest)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(address, descriptor, manifest, layout(manifest, ranks))

    def __enter__(self) -> "Arena":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def sink(self, kept: Sequence[Span]) -> Sink:
        """Takes a file's portions to where they belong.

        They are written and not mapped: fresh pages are then filled once, and not zeroed before.
        """

        def take(begin: int, portion: memoryview) -> None:
            for to, part in scattered(kept, begin, len(portion)):
                done, rest = 0, portion[part]
                while done < len(rest):
                    done += os.pwrite(self._descriptor, rest[done:], to + done)

        return take

    def private(self) -> mmap.mmap:
        """The memory as this rank alone sees it: what it writes from here on, no other rank reads."""
        writable = mmap.PROT_READ | mmap.PROT_WRITE
        return mmap.mmap(self._descriptor, self.layout.size_bytes, mmap.MAP_PRIVATE, writable)

    def close(self) -> None:
        """Let go; mappings stay for as long as someone looks at them."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
