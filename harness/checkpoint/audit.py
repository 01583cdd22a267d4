"""Whether a committed checkpoint is still what was committed, as far as that shows without a tensor."""

from harness.checkpoint.manifest import (
    COMMIT,
    MANIFEST,
    DamagedError,
    Manifest,
    Place,
    decode_commit,
    decode_manifest,
)
from harness.checkpoint.store import Store
from harness.events import Rejection


def manifest_of(store: Store, place: Place) -> Manifest:
    """What a committed checkpoint should hold. Raises `DamagedError`; no tensor is read."""
    try:
        commit = decode_commit(store.read(f"{place.name}/{COMMIT}"))
        raw = store.read(f"{place.name}/{MANIFEST}")
    except FileNotFoundError as error:
        raise DamagedError(Rejection.MISSING, f"{_file(error)} is missing") from error
    except OSError as error:
        raise DamagedError(Rejection.UNREADABLE, f"{type(error).__name__}: {error}") from error
    return decode_manifest(raw, commit, place, store.run_id)


def is_sound(store: Store, place: Place) -> bool:
    """True if the manifest is the committed one and every file of it has its size."""
    try:
        files = manifest_of(store, place).files
        return all(store.size(f"{place.name}/{name}") == file.size for name, file in files.items())
    except (DamagedError, OSError):
        return False


def _file(error: OSError) -> str:
    return str(error.filename or error).rsplit("/", 1)[-1]
