"""The copy for which training stops: tensors into memory that is used again at every save.

The bytes lie as the files will hold them, headers and all, so that writing them needs no second copy.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.checkpoint.memory import Memory
from harness.checkpoint.shards import Piece, Spec
from harness.checkpoint.tell import warn
from harness.checkpoint.tree import DTYPE_NAMES, DTYPES
from harness.points import Point, reach

_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Content:
    """What one file holds."""

    header: bytes
    pieces: Sequence[Piece]


@dataclass(frozen=True, slots=True)
class Span:
    """Where in the memory one file lies."""

    begin: int
    header_bytes: int
    size_bytes: int
    """Of all of it."""


class Buffers:
    """One rank's memory for its share; one save at a time may use it."""

    def __init__(self) -> None:
        self._memory: Memory | None = None
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._pinned = False
        self._reserving: threading.Thread | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes held, whether or not a save uses them."""
        return self._bytes.numel()

    def reserve(self, files: Sequence[Content], tensors: Mapping[str, Tensor]) -> None:
        """Get the memory that `take` will need, in another thread, and touch all of it.

        The first copy into fresh memory takes five to eight times as long as any later one.
        """
        _, needed = arranged(files)
        self._settle()
        self._reserving = threading.Thread(
            target=self._grow_ahead,
            args=(needed, _from_gpu(tensors)),
            name="checkpoint-memory",
            daemon=True,
        )
        self._reserving.start()

    def take(
        self, files: Sequence[Content], tensors: Mapping[str, Tensor]
    ) -> tuple[list[Span], Memory]:
        """Copy each file's bytes, now; they are the buffers' own until the next call.

        Raises `OSError` where there is not enough memory.
        """
        spans, needed = arranged(files)
        self._settle()
        self._grow(needed, _from_gpu(tensors))
        assert self._memory is not None
        for file, span in zip(files, spans, strict=True):
            self._memory.view[span.begin : span.begin + span.header_bytes] = file.header
        pairs = list(self._pairs(files, spans, tensors))
        half = -(-len(pairs) // 2)
        copy(pairs[:half])
        reach(Point.SAVE_COPY)
        copy(pairs[half:])
        return spans, self._memory

    def _settle(self) -> None:
        if self._reserving is not None:
            self._reserving.join()
            self._reserving = None

    def _grow_ahead(self, needed: int, pinned: bool) -> None:
        try:
            self._grow(needed, pinned)
        except OSError as error:  # the save itself will fail on it, and be told
            warn(f"there is no room for a copy of the state: {error}")

    def _grow(self, needed: int, pinned: bool) -> None:
        if needed <= self.size_bytes and self._memory is not None:
            return
        if self._pinned:
            unpin(self._bytes)
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._memory = None  # let go of the old one first
        self._memory = Memory(needed)
        self._bytes = (
            torch.frombuffer(self._memory.view, dtype=torch.uint8) if needed else self._bytes
        )
        self._bytes.zero_()  # touches every page
        self._pinned = pinned and pin(self._bytes)

    def _pairs(
        self, files: Sequence[Content], spans: Sequence[Span], tensors: Mapping[str, Tensor]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Each piece's place in the memory, and its values."""
        for file, span in zip(files, spans, strict=True):
            position = span.begin + span.header_bytes
            for piece in file.pieces:
                end = position + piece.part.size_bytes
                raw = self._bytes[position:end].view(DTYPES[piece.part.dtype])
                yield raw.view(piece.part.shape), rows(tensors[piece.name], piece)
                position = end


def specs(tensors: Mapping[str, Tensor]) -> dict[str, Spec]:
    """What each tensor is."""
    return {
        name: Spec(DTYPE_NAMES[tensor.dtype], tuple(tensor.shape))
        for name, tensor in tensors.items()
    }


def copy(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy each second tensor into the first; all values are there when this returns."""
    waits = False
    for target, source in pairs:
        target.copy_(source, non_blocking=True)
        waits = waits or source.device.type != "cpu"
    if waits:
        torch.accelerator.synchronize()


def arranged(files: Sequence[Content]) -> tuple[list[Span], int]:
    """Where each file lies, and how many bytes that takes."""
    spans: list[Span] = []
    position = 0
    for file in files:
        size = len(file.header) + sum(piece.part.size_bytes for piece in file.pieces)
        spans.append(Span(position, len(file.header), size))
        position += size
        position += -position % _ALIGNMENT_BYTES
    return spans, position


def rows(tensor: Tensor, piece: Piece) -> Tensor:
    """The piece as a view of its tensor."""
    return tensor.narrow(0, piece.start, piece.rows) if piece.spec.shape else tensor


# ── memory that a GPU writes to without help ────────────────────────────────────────────────────


def _from_gpu(tensors: Mapping[str, Tensor]) -> bool:
    return any(tensor.is_cuda for tensor in tensors.values())


def pin(memory: Tensor) -> bool:
    """Have CUDA lock the pages of `memory`; False, and said, where it refuses."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    refusal = int(runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), 0))
    if refusal:
        warn(
            f"CUDA does not lock the memory for copies (error {refusal}): saves stop training longer"
        )
    return not refusal


def unpin(memory: Tensor) -> None:
    """Take back `pin`, before the memory goes."""
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())  # type: ignore[no-untyped-call]
