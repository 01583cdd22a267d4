"""A whole checkpoint in memory, of all ranks, apart from where it is stored.

Every form in which it leaves goes through here, and so does every one in which it comes.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from torch import Tensor

from harness.checkpoint import tree
from harness.checkpoint.arena import Arena
from harness.checkpoint.audit import manifest_of
from harness.checkpoint.load import everything, read
from harness.checkpoint.manifest import Place
from harness.checkpoint.store import Store
from harness.digest import digest

SCHEMA = 1


class FormError(ValueError):
    """A file is not one that a checkpoint can be made of."""


@dataclass(frozen=True, slots=True)
class About:
    """What is known of a checkpoint beside its state."""

    schema: int
    run_id: str
    step: int
    attempt: int
    world_size: int
    fingerprint: Mapping[str, str]
    digest: str
    """Of the state. No form has a checksum that its own library looks at."""


@dataclass(frozen=True, slots=True)
class Document:
    """A checkpoint: its trees are as the ranks gave them."""

    about: About
    shared: Any
    own: Sequence[Any]
    """By rank."""


@dataclass(frozen=True, slots=True)
class Flattened:
    """The same as tensors by name, and text for all the rest."""

    tensors: Mapping[str, Tensor]
    """Those of all ranks under their plain names, those of one under `rank-N/`."""
    text: str


@dataclass(frozen=True, slots=True)
class _Text:
    about: About
    shared: Any
    own: Sequence[Any]


def of_store(store: Store, place: Place) -> Document:
    """A stored checkpoint, every byte of it verified. Raises `DamagedError`."""
    manifest = manifest_of(store, place)
    with Arena.create(manifest, range(manifest.world_size)) as arena:
        read(store, place, arena, manifest.files)
        shared, own = everything(arena)
    about = About(
        schema=SCHEMA,
        run_id=manifest.run_id,
        step=manifest.step,
        attempt=manifest.attempt,
        world_size=manifest.world_size,
        fingerprint=dict(manifest.fingerprint),
        digest=_digest(shared, own),
    )
    return Document(about, shared, own)


def flattened(document: Document) -> Flattened:
    """`document` as tensors and text. Raises `FormError` if two tensors have one name."""
    shared = tree.flatten(document.shared)
    tensors, own = dict(shared.tensors), []
    for rank, mine in enumerate(document.own):
        flat = tree.flatten(mine)
        own.append(flat.skeleton)
        for name, tensor in flat.tensors.items():
            full = _of_rank(rank, name)
            if full in tensors:
                raise FormError(f"two tensors would be named {full!r}")
            tensors[full] = tensor
    text = _Text(document.about, shared.skeleton, own)
    return Flattened(tensors, json.dumps(msgspec.to_builtins(text), allow_nan=False))


def unflattened(flat: Flattened, where: str) -> Document:
    """The document that `flattened` made `flat` of. Raises `FormError`."""
    try:
        text = msgspec.json.decode(flat.text, type=_Text)
        _check(text.about, len(text.own))
        shared = tree.unflatten(text.shared, flat.tensors)
        own = [
            tree.unflatten(skeleton, _of(rank, flat.tensors))
            for rank, skeleton in enumerate(text.own)
        ]
    except (msgspec.DecodeError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise FormError(f"{where} is no whole checkpoint: {error}") from error
    return Document(text.about, shared, own)


def about_in(fields: Any, ranks: int, where: str) -> About:
    """What `fields` say of a checkpoint. Raises `FormError`."""
    try:
        about = msgspec.convert(fields, About)
        _check(about, ranks)
    except (msgspec.ValidationError, ValueError) as error:
        raise FormError(f"{where} is no whole checkpoint: {error}") from error
    return about


def checked(document: Document, where: str) -> Document:
    """`document`, if its state is the one that was exported. Raises `FormError`."""
    found = _digest(document.shared, document.own)
    if found != document.about.digest:
        raise FormError(
            f"{where} is damaged, or was changed: its state has digest {found} and was exported with"
            f" {document.about.digest}"
        )
    return document


def foreign(where: str, names: Iterable[str]) -> FormError:
    """What to say of a file that holds tensors and is no exported checkpoint."""
    known = sorted(names)
    some = ", ".join(repr(name) for name in known[:3]) + (", …" if len(known) > 3 else "")
    return FormError(
        f"{where} was not made by `harness checkpoint export`: it holds {some or 'nothing'}, and a"
        " checkpoint holds all that decides the future (optimizer, random streams, the place in the"
        " data). Weights to begin with are loaded by the script, before job.steps()"
    )


def _check(about: About, ranks: int) -> None:
    if not 1 <= about.schema <= SCHEMA:
        raise ValueError(f"it has schema {about.schema}; this version reads 1 to {SCHEMA}")
    if not ranks == about.world_size >= 1:
        raise ValueError(f"it holds the state of {ranks} ranks and says {about.world_size}")


def _digest(shared: Any, own: Sequence[Any]) -> str:
    try:
        return digest([shared, *own])
    except TypeError as error:
        raise FormError(str(error)) from error


def _of_rank(rank: int, name: str) -> str:
    return f"rank-{rank}/{name}"


def _of(rank: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one rank, by their names in its tree."""
    prefix = _of_rank(rank, "")
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
