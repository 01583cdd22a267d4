"""What one rank takes of the state for a save: planned from two trees, then copied.

The copy is what training stops for; writing what was copied (share.py) is others' work.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import xxhash
from torch import Tensor

from harness.checkpoint import shards
from harness.checkpoint.buffers import (
    Buffers,
    Content,
    Copy,
    Copying,
    Span,
    arranged,
    copy,
    specs,
)
from harness.checkpoint.flattener import Flattener
from harness.checkpoint.manifest import Place
from harness.checkpoint.memory import Memory
from harness.checkpoint.shards import Piece, Spec
from harness.checkpoint.share import Shard, Share
from harness.checkpoint.slot import put_label, room
from harness.checkpoint.tell import said, warn
from harness.points import Point, reach

Tree = Callable[[], Any]
"""Gives a tree of the state, as it is now."""

_FAR = Place(10**12, 10**6)
"""No save has a longer name: what has room for its headers has room for every save's."""


_Specs = tuple[tuple[str, Spec], ...]


class _Side:
    """One of the two trees, taken apart at every save. What follows from its form alone stays."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._flattener = Flattener()
        self._form: object = None
        self._names: Sequence[str] = ()
        self.specs: _Specs = ()
        self.text = ""
        """Everything but the tensors, as JSON."""

    def taken(self, tree: Any) -> dict[str, Tensor]:
        """The tensors of a tree, by name in the checkpoint. Raises `StateError`."""
        found = self._flattener.flatten(tree)
        if found.form is not self._form:
            self._names = [self._prefix + name for name in found.tensors]
            named = dict(zip(self._names, found.tensors.values(), strict=True))
            self.specs = tuple(specs(named).items())
        self._form, self.text = found.form, found.text
        return dict(zip(self._names, found.tensors.values(), strict=True))


@dataclass(frozen=True, slots=True)
class _Division:
    """What of the state one rank copies, and into which files."""

    of: tuple[_Specs, _Specs]
    parts: Sequence[Sequence[Piece]]
    layout: str
    """A digest of what is shared."""

    @classmethod
    def made(cls, of: tuple[_Specs, _Specs], rank: int, world_size: int, most_bytes: int) -> Self:
        """Rank `rank`'s part of what all share, and all of its own, in files of `most_bytes`."""
        common, private = map(dict, of)
        pieces = shards.share(common, rank, world_size) + shards.whole(private)
        parts = tuple(tuple(part) for part in shards.files(pieces, most_bytes))
        return cls(of, parts, _digest(common))


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one rank is to copy, and into which files it goes."""

    division: _Division
    tensors: Mapping[str, Tensor]
    """The job's own memory, by name in the checkpoint."""
    shared: str
    own: str
    """The rest of the two trees, as JSON."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where a share lies in a slot, for one place."""

    files: Sequence[Content]
    spans: Sequence[Span]
    share: Share
    end: int
    """Where the last file does."""
    needed: int
    """Bytes of the slot."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a copy of a state takes."""

    size_bytes: int
    tensors: Mapping[str, Tensor]


class Taken:
    """A copy that was begun. Its memory stays as it is until the slot's next turn."""

    def __init__(
        self, share: Share, slot: int, memory: Memory, copying: Copying, label: Callable[[], None]
    ) -> None:
        self.share = share
        self.slot = slot
        self.memory = memory
        self._copying = copying
        self._label = label

    def wait(self) -> None:
        """Come back once all values are there. Raises `ChangedError` if they are of no one moment."""
        self._copying.wait()

    def finish(self) -> None:
        """The same, and have the slot say what lies in it."""
        self.wait()
        reach(Point.SAVE_LABEL)
        self._label()


class Copier:
    """Takes one rank's share at every save, into the same memory."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        run_id: str,
        shard_bytes: int,
        fingerprint: Mapping[str, str],
        buffers: Buffers | None = None,
        copy: Copy = copy,
    ) -> None:
        self.shard_bytes = shard_bytes
        self.buffers = buffers or Buffers()
        self.copy = copy
        self.rank = rank
        self.world_size = world_size
        self._run_id = run_id
        self._fingerprint = fingerprint
        self._reserved = False
        self._shared, self._own = _Side("shared/"), _Side(f"rank-{rank}/")
        self._division: _Division | None = None

    def reserve(self, need: Callable[[], Need]) -> None:
        """Get the memory for the first copies, in another thread, before they are due; once."""
        if self._reserved:
            return
        self._reserved = True
        try:
            needed = need()
            self.buffers.reserve(needed.size_bytes, needed.tensors)
        except Exception as error:  # noqa: BLE001  # the save itself will fail, and be told
            warn(f"rank {self.rank} has a state that it will not be able to save: {said(error)}")

    def need(self, shared: Tree, own: Tree) -> Need:
        """What a copy takes of a state such as this one. Raises `StateError`."""
        planned = self._plan(shared, own)
        return Need(self._laid_out(planned, _FAR).needed, planned.tensors)

    def take(
        self, place: Place, shared: Tree, own: Tree, busy: Memory | None = None
    ) -> Taken | None:
        """Begin to copy the share, now; None if the only memory for it is `busy`.

        Raises `StateError` for a state that cannot be saved, `OSError` where there is no memory.
        """
        planned = self._plan(shared, own)
        to = self._laid_out(planned, place)
        slot = self.buffers.claim(to.needed, planned.tensors, busy)
        if slot is None:
            return None
        memory = self.buffers.memory(slot)

        def label() -> None:
            put_label(
                memory.view,
                self._run_id,
                place,
                self.world_size,
                to.end,
                to.share,
                self._fingerprint,
            )
            self.buffers.whole(slot, place.step)

        copying = self.buffers.fill(slot, to.files, to.spans, planned.tensors, self.copy)
        return Taken(to.share, slot, memory, copying, label)

    def _plan(self, shared: Tree, own: Tree) -> _Plan:
        common, private = self._shared.taken(shared()), self._own.taken(own())
        of = self._shared.specs, self._own.specs
        if self._division is None or self._division.of != of:
            place = self.rank, self.world_size
            self._division = _Division.made(of, *place, self.shard_bytes)
        texts = self._shared.text, self._own.text
        return _Plan(self._division, {**common, **private}, *texts)

    def _laid_out(self, planned: _Plan, place: Place) -> _Layout:
        files = self._contents(planned, place)
        spans, end = arranged(files)
        share = self._share(planned, spans)
        return _Layout(files, spans, share, end, room(end, share, self._fingerprint))

    def _share(self, planned: _Plan, spans: Sequence[Span]) -> Share:
        names = (
            shards.file_name(self.rank, self.world_size, part)
            for part in range(len(planned.division.parts))
        )
        return Share(
            rank=self.rank,
            shards=[
                Shard(name, part, span.begin, span.header_bytes, span.size_bytes)
                for name, part, span in zip(names, planned.division.parts, spans, strict=True)
            ],
            shared=planned.shared if self.rank == 0 else "",
            own=planned.own,
            layout=planned.division.layout,
        )

    def _contents(self, planned: _Plan, place: Place) -> list[Content]:
        return [
            Content(shards.header(part, about(self._run_id, place, self.rank, number)), part)
            for number, part in enumerate(planned.division.parts)
        ]


def about(run_id: str, place: Place, rank: int, part: int) -> dict[str, str]:
    """What each shard says of itself in its header, for people; nobody here reads it."""
    numbers = {"step": place.step, "attempt": place.attempt, "rank": rank, "part": part}
    return {"run_id": run_id, **{name: str(number) for name, number in numbers.items()}}


def _digest(layout: Mapping[str, Spec]) -> str:
    lines = (f"{name} {spec.dtype} {spec.shape}\n" for name, spec in layout.items())
    return xxhash.xxh3_64_hexdigest("".join(lines).encode())
