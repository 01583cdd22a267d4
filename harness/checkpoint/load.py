"""Reads files of a checkpoint into an arena, verifies them, and makes a rank's state of what lies there.

Every byte of every file is read and counted in its checksum, and goes straight to where it belongs.
Nothing of it is used unless everything is as written.
"""

import json
import mmap
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.checkpoint.arena import Arena, owner_of, spans
from harness.checkpoint.audit import manifest_of, told_as_damage
from harness.checkpoint.files import Sink
from harness.checkpoint.manifest import DamagedError, FileRecord, Place, TensorRecord, check
from harness.checkpoint.shards import Spec
from harness.checkpoint.store import Store
from harness.checkpoint.tree import DTYPES, unflatten

_AT_ONCE = 4
"""Files that one rank reads at once; on one machine's disk it changes little, elsewhere much."""


@dataclass(frozen=True, slots=True)
class Found:
    """A state that was read and verified."""

    step: int
    saved_by: int
    """The attempt that had saved it."""
    world_size: int
    """Number of ranks that had saved it."""
    fingerprint: dict[str, str]
    shared: Any
    """The tree that all ranks hold alike."""
    own: Any
    """This rank's own tree, or rank 0's where this rank did not exist."""
    new_rank: bool
    """True if `own` is rank 0's, because no rank of this number took part in the save."""


def load(store: Store, place: Place, rank: int) -> Found:
    """Read and verify every file of a checkpoint, alone. Raises `DamagedError`."""
    manifest = manifest_of(store, place)
    with told_as_damage(), Arena.create(manifest, [rank]) as arena:
        read(store, place, arena, manifest.files)
        return take(arena, place, rank)


def read(
    store: Store,
    place: Place,
    arena: Arena,
    names: Collection[str],
    alive: Callable[[], None] = lambda: None,
) -> None:
    """Read and verify these files into the arena. Raises `DamagedError` at the first bad one.

    `alive` is called after each portion, by whichever thread has read it.
    """
    with told_as_damage():
        kept = spans(arena.manifest, arena.layout)

        def one(name: str) -> None:
            sink = arena.sink(kept.get(name, ()))

            def take(begin: int, portion: memoryview) -> None:
                sink(begin, portion)
                alive()

            _read(store, place, name, arena.manifest.files[name], take)

        with ThreadPoolExecutor(_AT_ONCE, "checkpoint-read") as threads:
            for _ in threads.map(one, names):
                pass


def _read(store: Store, place: Place, name: str, written: FileRecord, sink: Sink) -> None:
    """Read one file; what does not verify once more, for the way may have been bad, not the file."""

    def once() -> None:
        with told_as_damage():
            check(store.pour(f"{place.name}/{name}", written.size, sink), written, name)

    try:
        once()
    except DamagedError as error:
        if error.may_pass:  # the store has tried that again already
            raise
        once()


def take(arena: Arena, place: Place, rank: int) -> Found:
    """Rank `rank`'s state out of what was read; its tensors keep the memory alive.

    Raises `DamagedError` if what was written is no state.
    """
    manifest, memory = arena.manifest, arena.private()
    owner = owner_of(manifest, rank)
    begin, end = arena.layout.state
    with told_as_damage():
        skeletons = json.loads(memory[begin:end])
        return Found(
            step=place.step,
            saved_by=place.attempt,
            world_size=manifest.world_size,
            fingerprint=dict(manifest.fingerprint),
            shared=unflatten(skeletons["shared"], _tensors(arena, memory, "shared/")),
            own=unflatten(skeletons["own"][owner], _tensors(arena, memory, f"rank-{owner}/")),
            new_rank=owner != rank,
        )


def everything(arena: Arena) -> tuple[Any, list[Any]]:
    """The tree of all ranks and that of each, out of an arena that has room for all of them."""
    memory = arena.private()
    begin, end = arena.layout.state
    with told_as_damage():
        skeletons = json.loads(memory[begin:end])
        own = [
            unflatten(skeleton, _tensors(arena, memory, f"rank-{rank}/"))
            for rank, skeleton in enumerate(skeletons["own"])
        ]
        return unflatten(skeletons["shared"], _tensors(arena, memory, "shared/")), own


def _tensors(arena: Arena, memory: mmap.mmap, prefix: str) -> dict[str, Tensor]:
    """Every tensor under `prefix`, each a storage of its own: a copy of one copies no other."""
    return {
        name.removeprefix(prefix): _tensor(memory, begin, arena.manifest.tensors[name])
        for name, begin in arena.layout.tensors.items()
        if name.startswith(prefix)
    }


def _tensor(memory: mmap.mmap, begin: int, record: TensorRecord) -> Tensor:
    dtype, size = DTYPES[record.dtype], Spec(record.dtype, record.shape).size_bytes
    if size == 0:
        return torch.empty(record.shape, dtype=dtype)
    raw = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=begin)
    return raw.view(dtype).view(record.shape)
