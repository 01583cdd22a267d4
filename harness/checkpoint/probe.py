"""Whether a storage keeps its promises, tried out before anything depends on it.

What is tried is written under a name of its own, and nothing of it is left.
"""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Thread

from fsspec.implementations.local import LocalFileSystem

from harness.checkpoint.remote import creates_in_one_step, is_tried, part_bytes
from harness.checkpoint.store import Store, StoreError, probe_folder

SKEW_S = 60.0
"""Clocks that are further apart are worth a word; ages are told by the storage's alone."""

_CREATORS = 4
"""How many create one file at once."""

_STALE = "did not list a file that had just been written: listings are stale"


def probe(store: Store) -> list[str]:
    """Try out what a run needs of its storage; warnings for people.

    Raises `StoreError`, naming what the storage did, if checkpoints cannot be trusted to it.
    """
    folder = probe_folder()
    with _refused(store, "cannot be written"):
        store.make()
        began_s = time.time()
    try:
        warnings = _create(store, f"{folder}/created", began_s)
        _write(store, f"{folder}/written")
        if not is_tried(store.files):
            _contend(store, f"{folder}/contended")
            _break_off(store, f"{folder}/broken")
    finally:
        for name in ("created", "written", "contended", "broken"):
            with suppress(OSError):  # it was never written, or the storage has failed for good
                store.delete(f"{folder}/{name}")
    return warnings


def _create(store: Store, name: str, began_s: float) -> list[str]:
    first, second = b"first " + secrets.token_bytes(16), b"second " + secrets.token_bytes(16)
    with _refused(store, "cannot be written"):
        if not store.create(name, first):
            raise _promise(store, "refused to create a file that was not there")
    with _refused(store, "cannot be read"):
        if store.read(name) != first:
            raise _promise(store, "did not return what had just been written")
    if not isinstance(store.files, LocalFileSystem) and not creates_in_one_step(store.files):
        raise _promise(
            store,
            "has no way to create a file only where there is none: it looks, and then writes, so two"
            " attempts could both take themselves for the newest",
        )
    with _refused(store, "does not create files only where there are none"):
        created = store.create(name, second)
        if created or store.read(name) != first:
            raise _promise(
                store,
                "overwrote a file that was to be created only if it was not there, so two attempts"
                " could both take themselves for the newest",
            )
    return _listed(store, name, len(first), began_s)


def _listed(store: Store, name: str, size: int, began_s: float) -> list[str]:
    with _refused(store, "cannot be listed"):
        entry = store.listing().get(name)
    if entry is None or entry.size_bytes != size:
        raise _promise(store, _STALE)
    ended_s = time.time()
    ahead_s = max(entry.written_s - ended_s, 0.0) - max(began_s - entry.written_s, 0.0)
    if not entry.written_s or abs(ahead_s) <= SKEW_S:
        return []
    side = "ahead of" if ahead_s > 0 else "behind"
    return [f"the clock of {store.root} is {abs(ahead_s):.0f} s {side} this machine's"]


def _write(store: Store, name: str) -> None:
    with _refused(store, "cannot be written"):
        store.write(name, [b"old"])
        store.write(name, [b"new"])
    with _refused(store, "cannot be read"):
        if store.read(name) != b"new":
            raise _promise(store, "returned the old content of a file that was written again")
    with _refused(store, "cannot be listed"):
        if name not in store.listing():
            raise _promise(store, _STALE)
    with _refused(store, "does not delete"):
        store.delete(name)
        if name in store.listing():
            raise _promise(store, "listed a file that had just been deleted: listings are stale")


def _contend(store: Store, name: str) -> None:
    """Several create one file at once, and one of them alone may have done so."""
    won: list[bytes] = []

    def create() -> None:
        content = secrets.token_bytes(16)
        with suppress(OSError):  # it has lost, then
            if store.create(name, content):
                won.append(content)

    creators = [Thread(target=create, daemon=True) for _ in range(_CREATORS)]
    for creator in creators:
        creator.start()
    for creator in creators:
        creator.join()
    with _refused(store, "cannot be read"):
        if len(won) != 1 or store.read(name) != won[0]:
            raise _promise(
                store, f"let {len(won)} of {_CREATORS} that created one file at once all have it"
            )


class _BrokenOffError(Exception):
    """What the writer of a half object dies of."""


def _break_off(store: Store, name: str) -> None:
    """Write an object of several parts, and stop after the first."""
    seen_early: list[bool] = []

    def chunks() -> Iterator[bytes]:
        yield bytes(part_bytes(0))
        seen_early.append(name in store.listing())
        raise _BrokenOffError

    with _refused(store, "cannot be written"), suppress(_BrokenOffError):
        replace(store, shard_bytes=0).write(name, chunks())
    if any(seen_early):
        raise _promise(store, "showed an object before all of it was written")
    with _refused(store, "cannot be listed"):
        if name in store.listing():
            raise _promise(store, "showed a half of an object whose writing had been broken off")


def _promise(store: Store, did: str) -> StoreError:
    return StoreError(
        f"the storage {store.root} cannot hold checkpoints: it {did}; use another one (file://,"
        " s3://, gs:// and abfs:// do it rightly)"
    )


@contextmanager
def _refused(store: Store, what: str) -> Iterator[None]:
    """Say of an error that it is the storage's."""
    try:
        yield
    except OSError as error:
        why = f"{type(error).__name__}: {error}"
        raise StoreError(f"the storage {store.root} {what}: {why}") from error
