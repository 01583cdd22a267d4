"""What one rank takes of the state for a save: planned from two trees, then copied.

The copy is what training stops for; writing what was copied (share.py) is others' work.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
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
from harness.checkpoint.manifest import Place
from harness.checkpoint.memory import Memory
from harness.checkpoint.shards import Piece, Spec
from harness.checkpoint.share import Shard, Share
from harness.checkpoint.slot import put_label, room
from harness.checkpoint.tell import said, warn
from harness.checkpoint.tree import flatten
from harness.points import Point, reach

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
    layouts = tuple(specs(common).items()), tuple(specs(private).items())
    parts, digest = _divided(*layouts, rank, world_size, shard_bytes)
    return Plan(
        parts=parts,
        tensors={**common, **private},
        shared=flat.skeleton,
        own=mine.skeleton,
        layout=digest,
    )


_Specs = tuple[tuple[str, Spec], ...]


@lru_cache(maxsize=4)
def _divided(
    common: _Specs, private: _Specs, rank: int, world_size: int, shard_bytes: int
) -> tuple[Sequence[Sequence[Piece]], str]:
    """The files of a rank, and the digest of what is shared: once, for training waits for every save's."""
    pieces = shards.share(dict(common), rank, world_size) + shards.whole(dict(private))
    files = shards.files(pieces, shard_bytes)
    return tuple(tuple(part) for part in files), _digest(dict(common))


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

    def _plan(self, shared: Tree, own: Tree) -> Plan:
        return plan(shared(), own(), self.rank, self.world_size, self.shard_bytes)

    def _laid_out(self, planned: Plan, place: Place) -> _Layout:
        files = self._contents(planned, place)
        spans, end = arranged(files)
        share = self._share(planned, spans)
        return _Layout(files, spans, share, end, room(end, share, self._fingerprint))

    def _share(self, planned: Plan, spans: Sequence[Span]) -> Share:
        names = (
            shards.file_name(self.rank, self.world_size, part) for part in range(len(planned.parts))
        )
        return Share(
            rank=self.rank,
            shards=[
                Shard(name, part, span.begin, span.header_bytes, span.size_bytes)
                for name, part, span in zip(names, planned.parts, spans, strict=True)
            ],
            shared=_json(planned.shared) if self.rank == 0 else "",
            own=_json(planned.own),
            layout=planned.layout,
        )

    def _contents(self, planned: Plan, place: Place) -> list[Content]:
        return [
            Content(shards.header(part, about(self._run_id, place, self.rank, number)), part)
            for number, part in enumerate(planned.parts)
        ]


def about(run_id: str, place: Place, rank: int, part: int) -> dict[str, str]:
    """What each shard says of itself in its header, for people; nobody here reads it."""
    numbers = {"step": place.step, "attempt": place.attempt, "rank": rank, "part": part}
    return {"run_id": run_id, **{name: str(number) for name, number in numbers.items()}}


def _json(skeleton: Any) -> str:
    return msgspec.json.encode(skeleton).decode()  # no number in it is none: see `tree`


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _digest(layout: Mapping[str, Spec]) -> str:
    lines = (f"{name} {spec.dtype} {spec.shape}\n" for name, spec in layout.items())
    return xxhash.xxh3_64_hexdigest("".join(lines).encode())
