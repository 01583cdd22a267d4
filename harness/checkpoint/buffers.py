"""The copy for which training stops: tensors into memory that is used again at every save.

The bytes lie as the files will hold them, so that writing them needs no second copy.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.checkpoint.shards import Piece, Spec
from harness.checkpoint.tree import DTYPE_NAMES, DTYPES

_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Slice:
    """One piece and where in the memory it goes."""

    piece: Piece
    begin: int


class Buffers:
    """One rank's memory for its share; one save at a time may use it."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._reserving: threading.Thread | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes held, whether or not a save uses them."""
        return self._memory.numel()

    def reserve(self, files: Sequence[Sequence[Piece]], tensors: Mapping[str, Tensor]) -> None:
        """Get the memory that `take` will need, in another thread, and touch all of it.

        The first copy into fresh memory takes five to eight times as long as any later one.
        """
        _, _, needed = _arranged(files)
        self._settle()
        self._reserving = threading.Thread(
            target=self._grow,
            args=(needed, _pinned(tensors)),
            name="checkpoint-memory",
            daemon=True,
        )
        self._reserving.start()

    def take(
        self, files: Sequence[Sequence[Piece]], tensors: Mapping[str, Tensor]
    ) -> list[memoryview]:
        """The bytes of each file, copied now; they are the buffers' own until the next call."""
        slices, spans, needed = _arranged(files)
        self._settle()
        self._grow(needed, _pinned(tensors))
        copy(
            (self._target(piece), _rows(tensors[piece.piece.name], piece.piece)) for piece in slices
        )
        memory = self._memory.numpy().data
        return [memory[begin:end] for begin, end in spans]

    def _settle(self) -> None:
        if self._reserving is not None:
            self._reserving.join()
            self._reserving = None

    def _grow(self, needed: int, pinned: bool) -> None:
        if needed > self.size_bytes:
            self._memory = torch.empty(0, dtype=torch.uint8)  # let go of the old one first
            self._memory = torch.empty(needed, dtype=torch.uint8, pin_memory=pinned).zero_()

    def _target(self, place: Slice) -> Tensor:
        part = place.piece.part
        raw = self._memory[place.begin : place.begin + part.size_bytes]
        return raw.view(DTYPES[part.dtype]).view(part.shape)


def specs(tensors: Mapping[str, Tensor]) -> dict[str, Spec]:
    """What each tensor is."""
    return {
        name: Spec(DTYPE_NAMES[tensor.dtype], tuple(tensor.shape))
        for name, tensor in tensors.items()
    }


def _rows(tensor: Tensor, piece: Piece) -> Tensor:
    """The piece as a view of its tensor."""
    return tensor.narrow(0, piece.start, piece.rows) if piece.spec.shape else tensor


def _pinned(tensors: Mapping[str, Tensor]) -> bool:
    """True if the copies come from a GPU, which writes to such memory without help."""
    return any(tensor.is_cuda for tensor in tensors.values())


def copy(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy each second tensor into the first; all values are there when this returns."""
    waits = False
    for target, source in pairs:
        target.copy_(source, non_blocking=True)
        waits = waits or source.device.type != "cpu"
    if waits:
        torch.accelerator.synchronize()


def _arranged(
    files: Sequence[Sequence[Piece]],
) -> tuple[list[Slice], list[tuple[int, int]], int]:
    """Where every piece goes, where each file's bytes are, and how many bytes that takes."""
    slices: list[Slice] = []
    spans: list[tuple[int, int]] = []
    position = 0
    for pieces in files:
        begin = position
        for piece in pieces:
            slices.append(Slice(piece, position))
            position += piece.part.size_bytes
        spans.append((begin, position))
        position += -position % _ALIGNMENT_BYTES
    return slices, spans, position
