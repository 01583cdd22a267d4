"""Reads a checkpoint and verifies all of it; nothing of it is used unless everything is as written.

Every byte of every file is read and counted in its checksum, and goes straight into the tensor that
it belongs to: beside the state itself nothing is in memory.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.checkpoint.audit import manifest_of
from harness.checkpoint.manifest import STATE, DamagedError, Manifest, Place, check
from harness.checkpoint.store import Store
from harness.checkpoint.tree import DTYPES, unflatten
from harness.events import Rejection


@dataclass(frozen=True, slots=True)
class Found:
    """A state that every rank has read and verified."""

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
    """Read and verify every file of a checkpoint. Raises `DamagedError`."""
    try:
        return _load(store, place, rank)
    except DamagedError:
        raise
    except FileNotFoundError as error:
        raise DamagedError(Rejection.MISSING, f"{error.filename or error} is missing") from error
    except Exception as error:  # whatever it is that cannot be read is not resumed from
        raise DamagedError(Rejection.UNREADABLE, f"{type(error).__name__}: {error}") from error


def _load(store: Store, place: Place, rank: int) -> Found:
    manifest = manifest_of(store, place)
    new_rank = rank >= manifest.world_size
    own = f"rank-{0 if new_rank else rank}/"
    tensors = {
        name: torch.empty(tensor.shape, dtype=DTYPES[tensor.dtype])
        for name, tensor in manifest.tensors.items()
        if name.startswith(("shared/", own))
    }
    targets = _targets(manifest, tensors)
    state = bytearray(manifest.files[STATE].size)
    targets[STATE] = [(0, memoryview(state))]
    for name, written in manifest.files.items():
        read = store.fill(f"{place.name}/{name}", written.size, targets.get(name, ()))
        check(read, written, name)
    skeletons = json.loads(state)
    return Found(
        step=place.step,
        saved_by=place.attempt,
        world_size=manifest.world_size,
        fingerprint=dict(manifest.fingerprint),
        shared=unflatten(skeletons["shared"], _named(tensors, "shared/")),
        own=unflatten(skeletons["own"][0 if new_rank else rank], _named(tensors, own)),
        new_rank=new_rank,
    )


def _targets(
    manifest: Manifest, tensors: Mapping[str, Tensor]
) -> dict[str, list[tuple[int, memoryview]]]:
    """For each file, where in it bytes of `tensors` begin and the memory that they belong in."""
    found: dict[str, list[tuple[int, memoryview]]] = {}
    for name, tensor in tensors.items():
        for piece in manifest.tensors[name].pieces:
            rows = tensor.narrow(0, piece.offset, piece.rows) if tensor.dim() else tensor
            memory = rows.flatten().view(torch.uint8).numpy().data
            found.setdefault(piece.file, []).append((piece.begin, memory))
    return found


def _named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
