"""Makes a committed checkpoint of a document, as the newest state of a run.

With the commit it counts: the record of its attempt comes after it, and follows from it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.checkpoint import shards, tree
from harness.checkpoint.buffers import rows, specs
from harness.checkpoint.capture import about
from harness.checkpoint.lineage import Departure
from harness.checkpoint.manifest import (
    COMMIT,
    MANIFEST,
    SCHEMA,
    STATE,
    Commit,
    FileRecord,
    Manifest,
    PieceRecord,
    Place,
    TensorRecord,
    encode_commit,
    encode_manifest,
)
from harness.checkpoint.shards import Piece
from harness.checkpoint.store import Store, StoreError
from harness.stored.document import Document


def place_document(store: Store, document: Document, step: int, attempt: int) -> Place:
    """Commit `document` as the state after `step` steps; the run goes on from it, with `attempt`.

    Raises `StoreError` or `OSError`, and leaves nothing there then.
    """
    place = Place(step, attempt)
    store.begin(place)
    try:
        written = _write(store, place, document)
        began = Departure(None, 0)
        commit = Commit(SCHEMA, store.run_id, place.step, place.attempt, written, began)
        if not store.create(f"{place.name}/{COMMIT}", encode_commit(commit)):
            raise StoreError(f"{place.name} was committed by someone else")
        store.record_lineage(attempt, began.parent, began.step)
    except BaseException:
        store.remove(place)
        raise
    return place


def _write(store: Store, place: Place, document: Document) -> FileRecord:
    """Write everything but the commit; size and checksum of the manifest."""
    flats = [tree.flatten(mine) for mine in document.own]
    shared = tree.flatten(document.shared)
    ranks = len(flats)
    tensors = {f"shared/{name}": tensor for name, tensor in shared.tensors.items()}
    layout = specs(tensors)
    files: dict[str, FileRecord] = {}
    records: dict[str, TensorRecord] = {}
    for rank, flat in enumerate(flats):
        private = {f"rank-{rank}/{name}": tensor for name, tensor in flat.tensors.items()}
        pieces = shards.share(layout, rank, ranks) + shards.whole(specs(private))
        for number, part in enumerate(shards.files(pieces, store.shard_bytes)):
            name = shards.file_name(rank, ranks, number)
            header = shards.header(part, about(store.run_id, place, rank, number))
            content = [_bytes({**tensors, **private}, piece) for piece in part]
            files[name] = store.write(f"{place.name}/{name}", [header, *content])
            _note(records, name, len(header), part)
    state = {"schema": SCHEMA, "shared": shared.skeleton, "own": [f.skeleton for f in flats]}
    files[STATE] = store.write(f"{place.name}/{STATE}", [_json(state)])
    manifest = Manifest(
        schema=SCHEMA,
        run_id=store.run_id,
        step=place.step,
        attempt=place.attempt,
        world_size=ranks,
        fingerprint=document.about.fingerprint,
        files=files,
        tensors=records,
    )
    return store.write(f"{place.name}/{MANIFEST}", [encode_manifest(manifest)])


def _bytes(tensors: Mapping[str, Tensor], piece: Piece) -> memoryview:
    held = rows(tensors[piece.name], piece).contiguous()
    data: memoryview = held.flatten().view(torch.uint8).numpy().data
    return data


def _note(records: dict[str, TensorRecord], file: str, begin: int, part: Sequence[Piece]) -> None:
    """Add to `records` where in `file`, whose header ends at `begin`, the pieces of it are."""
    for piece in part:
        known = records.get(piece.name, TensorRecord(piece.spec.dtype, piece.spec.shape, ()))
        where = PieceRecord(file, piece.name, piece.start, piece.rows, begin)
        records[piece.name] = replace(known, pieces=(*known.pieces, where))
        begin += piece.part.size_bytes


def _json(state: Mapping[str, Any]) -> bytes:
    return json.dumps(state, allow_nan=False).encode() + b"\n"
