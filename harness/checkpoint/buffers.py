"""The copy for which training stops: tensors into memory that is used again at every save.

The bytes lie as the files will hold them, headers and all, so that writing them needs no second copy.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from harness.checkpoint.memory import Memory
from harness.checkpoint.pinning import from_gpu, pin, unpin
from harness.checkpoint.shards import Piece, Spec, sizes
from harness.checkpoint.slot import DATA, tear
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


_SPARE_BYTES = 256 << 10
"""More than is needed: headers and descriptions grow by some bytes as steps get more digits."""
_NOTHING = torch.empty(0, dtype=torch.uint8)


@dataclass(slots=True, eq=False)
class _Slot:
    memory: Memory | None = None
    bytes: Tensor = _NOTHING
    pinned: bool = False
    step: int = -1
    """Of the state that lies in it whole; -1 for none."""
    claimed: bool = False
    """A copy to it has begun, and it is not whole yet."""
    laid_out: Sequence[tuple[Span, Sequence[Piece]]] | None = None
    """What `views` are of."""
    views: Sequence[Tensor] = ()

    def fit(self, needed: int, pinned: bool, make: Callable[[int], Memory]) -> None:
        """Have `needed` bytes, all touched. Raises `OSError` where there is not that much memory."""
        if self.memory is None or needed > self.memory.size_bytes:
            self.let_go()
            self.memory = make(needed + _SPARE_BYTES)
            self.bytes = torch.frombuffer(self.memory.view, dtype=torch.uint8)
            self.bytes.zero_()  # touches every page
        elif not len(self.bytes):
            self.bytes = torch.frombuffer(self.memory.view, dtype=torch.uint8)
        if pinned and not self.pinned:
            self.pinned = pin(self.bytes)

    def let_go(self) -> None:
        """Before other memory takes its place."""
        if self.pinned:
            unpin(self.bytes)
        self.bytes, self.memory, self.pinned, self.step = _NOTHING, None, False, -1
        self.laid_out, self.views = None, ()

    def places(self, files: Sequence[Content], spans: Sequence[Span]) -> Sequence[Tensor]:
        """Where each piece lies. Mostly as the last time: training waits while views are made."""
        laid_out = [(span, file.pieces) for file, span in zip(files, spans, strict=True)]
        if laid_out != self.laid_out:
            self.laid_out = laid_out
            self.views = [place for one in laid_out for place in _places(self.bytes, *one)]
        return self.views


class Buffers:
    """One rank's memory for its share: slots in turn, the oldest first; one save at a time may hold one."""

    def __init__(
        self,
        slots: int = 1,
        make: Callable[[int, int], Memory] = lambda _slot, size_bytes: Memory(size_bytes),
    ) -> None:
        """`make` gives a slot its memory, by its number and size."""
        self._make = make
        self._slots = {number: _Slot() for number in range(slots)}
        self._reserving: threading.Thread | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes held, whether or not a save uses them."""
        return sum(memory.size_bytes for memory in self.held().values())

    def adopt(self, found: Mapping[int, Memory], resumed: int | None, step: int) -> None:
        """Go on with the memory of a rank before this one; slot `resumed` holds the state of `step`."""
        for number, memory in found.items():
            if (slot := self._slots.get(number)) is not None:
                slot.memory, slot.step = memory, step if number == resumed else -1

    def limit(self, slots: int) -> None:
        """Have no more than so many, under their numbers; those that hold nothing go first."""
        newest = sorted(self._slots, key=lambda number: -self._slots[number].step)
        self._slots = {number: self._slots[number] for number in sorted(newest[:slots])}

    def are_all(self, busy: Memory | None) -> bool:
        """True if there is no slot but one that is `busy`."""
        return busy is not None and all(slot.memory is busy for slot in self._slots.values())

    def reserve(self, needed: int, tensors: Mapping[str, Tensor]) -> None:
        """Get the memory that `take` will need, in another thread, and touch all of it.

        The first copy into fresh memory takes five to eight times as long as any later one.
        """
        self.settle()
        self._reserving = threading.Thread(
            target=self._grow_ahead,
            args=(needed, from_gpu(tensors)),
            name="checkpoint-memory",
            daemon=True,
        )
        self._reserving.start()

    def claim(
        self, needed: int, tensors: Mapping[str, Tensor], busy: Memory | None = None
    ) -> int | None:
        """The slot that is copied to next, torn from now on; None if all that there are are `busy`.

        Raises `OSError` where there is not enough memory.
        """
        self.settle()
        free = {
            n: it for n, it in self._slots.items() if it.memory is None or it.memory is not busy
        }
        if not free:
            return None
        number = min(free, key=lambda number: free[number].step)
        slot = free[number]
        slot.step, slot.claimed = -1, True
        slot.fit(needed, from_gpu(tensors), partial(self._make, number))
        assert slot.memory is not None
        tear(slot.memory.view)
        return number

    def fill(
        self,
        number: int,
        files: Sequence[Content],
        spans: Sequence[Span],
        tensors: Mapping[str, Tensor],
        copy: "Copy",
    ) -> "Copying":
        """Copy each file's bytes to where they belong in a slot; done once what this gives has waited."""
        memory = self.memory(number)
        for file, span in zip(files, spans, strict=True):
            memory.view[span.begin : span.begin + span.header_bytes] = file.header
        return copy(self._pairs(number, files, spans, tensors))

    def memory(self, number: int) -> Memory:
        """Of a slot that was claimed."""
        memory = self._slots[number].memory
        assert memory is not None
        return memory

    def held(self) -> dict[int, Memory]:
        """The memory of each slot that has some."""
        slots = self._slots.items()
        return {n: slot.memory for n, slot in slots if slot.memory is not None}

    def whole(self, number: int, step: int) -> None:
        """The state of `step` lies in the slot, and stays until a newer one does in another."""
        self._slots[number].step, self._slots[number].claimed = step, False

    def forget(self) -> None:
        """No state lies in any slot any more."""
        self.settle()
        for slot in self._slots.values():
            if slot.memory is not None:
                tear(slot.memory.view)
                slot.step = -1

    def settle(self) -> None:
        """Wait until no memory is being got."""
        if self._reserving is not None:
            self._reserving.join()
            self._reserving = None

    def _grow_ahead(self, needed: int, pinned: bool) -> None:
        try:
            for number, slot in self._slots.items():
                if slot.step < 0 and not slot.claimed:
                    slot.fit(needed, pinned, partial(self._make, number))
        except OSError as error:  # the save itself will fail on it, and be told
            warn(f"there is no room for a copy of the state: {error}")

    def _pairs(
        self,
        number: int,
        files: Sequence[Content],
        spans: Sequence[Span],
        tensors: Mapping[str, Tensor],
    ) -> list[tuple[Tensor, Tensor]]:
        """Each piece's place in the memory, and its values."""
        pieces = [piece for file in files for piece in file.pieces]
        values = (rows(tensors[piece.name], piece) for piece in pieces)
        return list(zip(self._slots[number].places(files, spans), values, strict=True))


class Copying(Protocol):
    """A copy that may still be under way."""

    def wait(self) -> None:
        """Come back once all values are there."""


Copy = Callable[[Sequence[tuple[Tensor, Tensor]]], Copying]
"""Copies each second tensor into the first, and may return before it is done."""


class _Done:
    def wait(self) -> None:
        """See `Copying`."""


def specs(tensors: Mapping[str, Tensor]) -> dict[str, Spec]:
    """What each tensor is."""
    return {
        name: Spec(DTYPE_NAMES[tensor.dtype], tuple(tensor.shape))
        for name, tensor in tensors.items()
    }


def copy(pairs: Sequence[tuple[Tensor, Tensor]]) -> Copying:
    """Copy each second tensor into the first; all values are there when this returns."""
    half = -(-len(pairs) // 2)
    _copied(pairs[:half])
    reach(Point.SAVE_COPY)
    _copied(pairs[half:])
    return _Done()


def _copied(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    waits = False
    for target, source in pairs:
        target.copy_(source, non_blocking=True)
        waits = waits or source.device.type != "cpu"
    if waits:
        torch.accelerator.synchronize()


def arranged(files: Sequence[Content]) -> tuple[list[Span], int]:
    """Where in a slot each file lies, and where the last one ends."""
    spans: list[Span] = []
    position = DATA
    for file in files:
        size = len(file.header) + sum(sizes(tuple(file.pieces)))
        spans.append(Span(position, len(file.header), size))
        position += size
        position += -position % _ALIGNMENT_BYTES
    return spans, position


def _places(whole: Tensor, span: Span, pieces: Sequence[Piece]) -> Iterator[Tensor]:
    """Where each piece of a file lies in a slot's bytes."""
    position = span.begin + span.header_bytes
    for piece, size in zip(pieces, sizes(tuple(pieces)), strict=True):
        raw = whole[position : position + size].view(DTYPES[piece.part.dtype])
        yield raw.view(piece.part.shape)
        position += size


def rows(tensor: Tensor, piece: Piece) -> Tensor:
    """The piece as a view of its tensor."""
    whole = piece.rows == piece.spec.rows
    return tensor if whole else tensor.narrow(0, piece.start, piece.rows)
