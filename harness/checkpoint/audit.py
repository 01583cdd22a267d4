"""Whether a committed checkpoint is still what was committed, as far as that shows without a tensor.

One that is found damaged is set aside: a record beside its commit says so, and nobody reads it again.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from harness.checkpoint.manifest import (
    COMMIT,
    MANIFEST,
    REJECTED,
    DamagedError,
    Manifest,
    Place,
    UnansweredError,
    check,
    decode_commit,
    decode_manifest,
)
from harness.checkpoint.patience import tells_nothing
from harness.checkpoint.store import Store
from harness.events import Rejection

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class SetAside:
    """Why a checkpoint was set aside, by which attempt, and when."""

    rejection: Rejection
    reason: str
    attempt: int
    wall_ns: int


@contextmanager
def told_as_damage() -> Iterator[None]:
    """Whatever goes wrong in this block says that the checkpoint cannot be used: `DamagedError`.

    But for what says nothing of it, an outage above all: `UnansweredError`.
    """
    try:
        yield
    except (DamagedError, UnansweredError):
        raise
    except FileNotFoundError as error:
        raise DamagedError(Rejection.MISSING, f"{_file(error)} is missing") from error
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        if tells_nothing(error):
            raise UnansweredError(why) from error
        raise DamagedError(Rejection.UNREADABLE, why, may_pass=True) from error


def manifest_of(store: Store, place: Place) -> Manifest:
    """What a committed checkpoint should hold. Raises `DamagedError`; no tensor is read."""
    with told_as_damage():
        commit = decode_commit(store.read(f"{place.name}/{COMMIT}"))
        raw = store.read(f"{place.name}/{MANIFEST}")
        return decode_manifest(raw, commit, place, store.run_id)


def verify(store: Store, place: Place) -> Manifest:
    """Read every byte of a checkpoint; its manifest if all is as written, else `DamagedError`."""
    manifest = manifest_of(store, place)
    for name, written in manifest.files.items():
        with told_as_damage():
            check(store.pour(f"{place.name}/{name}", written.size), written, name)
    return manifest


def is_sound(store: Store, place: Place, inventory: Mapping[str, int] | None = None) -> bool:
    """True if the manifest is the committed one and every file of it has its size.

    `inventory` is what the storage holds, where it has been listed already. Raises `UnansweredError`
    where that cannot be told now.
    """
    try:
        files = manifest_of(store, place).files
        with told_as_damage():
            found = store.inventory() if inventory is None else inventory
    except DamagedError as damage:
        if damage.may_pass:
            raise UnansweredError(str(damage)) from damage
        return False
    return all(found.get(f"{place.name}/{name}") == file.size for name, file in files.items())


def is_known_sound(store: Store, place: Place) -> bool:
    """The same, for whoever wants one that is good for sure: what cannot be told now is not."""
    try:
        return is_sound(store, place)
    except UnansweredError:
        return False


def set_aside(store: Store, place: Place, found: DamagedError, attempt: int) -> bool:
    """Write down that a checkpoint is damaged; False if someone has already. Deletes nothing."""
    record = SetAside(found.rejection, found.reason, attempt, time.time_ns())
    fields = {"schema": SCHEMA, "run_id": store.run_id, **msgspec.to_builtins(record)}
    return store.create(f"{place.name}/{REJECTED}", json.dumps(fields).encode() + b"\n")


def was_set_aside(store: Store, place: Place) -> SetAside | None:
    """Why a checkpoint was set aside, or None if nobody has done that.

    A record that cannot be read says no less than that: it is made for nothing else.
    """
    try:
        raw = store.read(f"{place.name}/{REJECTED}")
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(raw, type=SetAside)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return SetAside(Rejection.UNREADABLE, f"{REJECTED} itself is damaged: {error}", 0, 0)


def _file(error: OSError) -> str:
    return str(error.filename or error).rsplit("/", 1)[-1]
