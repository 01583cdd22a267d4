"""What a checkpoint says about itself: the manifest, and the commit that makes it one.

The commit holds the manifest's hash, the manifest every file's; so one file decides whether all the
others are what was written. The names of a checkpoint's directory and of these files are made here;
those of shards in shards.py.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
import xxhash

from harness.checkpoint.dtypes import ITEM_BYTES
from harness.checkpoint.lineage import Departure
from harness.checkpoint.shards import Spec
from harness.events import Rejection

SCHEMA = 1
STATE, MANIFEST, COMMIT = "state.json", "manifest.json", "commit.json"
REJECTED = "rejected.json"
"""Beside a commit that is there no longer to be resumed from."""

_PLACE = re.compile(r"step-(\d{8,})-(\d+)(?:-try-(\d+))?")


class DamagedError(Exception):
    """A checkpoint is not what was committed, or cannot be read now."""

    def __init__(self, rejection: Rejection, reason: str, may_pass: bool = False) -> None:
        self.rejection = rejection
        self.reason = reason
        self.may_pass = may_pass
        """True if another try, or another version, may find it whole."""
        super().__init__(f"{rejection}: {reason}")


class NewerError(DamagedError):
    """A checkpoint is whole, and of a form that only a later version of this library reads."""


class UnansweredError(OSError):
    """A checkpoint cannot be read now, and that says nothing of it: an outage, not damage."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """The directory of one save. It is used once: a save that failed is tried again beside it."""

    step: int
    attempt: int
    trial: int = 1

    @property
    def name(self) -> str:
        """`step-00001200-7`, and `step-00001200-7-try-2` where that failed once."""
        again = "" if self.trial == 1 else f"-try-{self.trial}"
        return f"step-{self.step:08d}-{self.attempt}{again}"

    @classmethod
    def parse(cls, name: str) -> "Place | None":
        """The place that a directory's name tells, or None where it is none of ours."""
        match = _PLACE.fullmatch(name)
        if match is None:
            return None
        step, attempt, trial = (int(number or 1) for number in match.groups())
        place = cls(step, attempt, trial)
        return place if place.name == name else None


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and checksum of a file as it was written."""

    size: int
    xxh3_128: str


@dataclass(frozen=True, slots=True)
class PieceRecord:
    """Rows `offset` to `offset + rows` of a tensor (of dimension 0), under `key` in `file`."""

    file: str
    key: str
    offset: int
    rows: int
    begin: int
    """Where in the file its bytes begin, so that no one has to trust the file's own header."""


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor's dtype by its safetensors name, its global shape, and where its rows are."""

    dtype: str
    shape: tuple[int, ...]
    pieces: Sequence[PieceRecord]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything about one checkpoint but its values."""

    schema: int
    run_id: str
    step: int
    attempt: int
    world_size: int
    fingerprint: Mapping[str, str]
    files: Mapping[str, FileRecord]
    """By name within the checkpoint: the shards and `state.json`."""
    tensors: Mapping[str, TensorRecord]
    """`shared/…` of all ranks, `rank-3/…` of rank 3 alone."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Written last: from here on the checkpoint exists."""

    schema: int
    run_id: str
    step: int
    attempt: int
    manifest: FileRecord
    departure: Departure | None = None
    """Where the attempt began, should its own record be lost; older versions did not say."""


def record(data: bytes) -> FileRecord:
    """Size and checksum of `data`."""
    return FileRecord(len(data), xxhash.xxh3_128_hexdigest(data))


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest's file."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


def encode_commit(commit: Commit) -> bytes:
    """The commit's file. It carries a checksum of its own, since nothing else vouches for it."""
    fields = asdict(commit)
    return _canonical({**fields, "checksum": _checksum(fields)})


def decode_commit(data: bytes) -> Commit:
    """The commit in `data`, whosever it is. Raises `DamagedError`."""
    try:
        fields = json.loads(data)
        checksum = fields.pop("checksum")
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(Rejection.TORN, f"{COMMIT} cannot be read: {error!r}") from error
    if checksum != _checksum(fields):
        raise DamagedError(Rejection.CHECKSUM, f"{COMMIT} does not have its own checksum")
    return _decoded(data, Commit, COMMIT)


def decode_manifest(data: bytes, commit: Commit, place: Place, run_id: str) -> Manifest:
    """The manifest that `commit` names, consistent in itself. Raises `DamagedError`."""
    _check_save(commit, COMMIT, place, run_id)
    check(record(data), commit.manifest, MANIFEST)
    manifest = _decoded(data, Manifest, MANIFEST)
    _check_save(manifest, MANIFEST, place, run_id)
    contradictions = _contradictions(manifest)
    if contradictions:
        raise DamagedError(
            Rejection.UNREADABLE, f"{MANIFEST} contradicts itself: {contradictions[0]}"
        )
    return manifest


def check(found: FileRecord, written: FileRecord, name: str) -> None:
    """Raise `DamagedError` unless the file is the one that was written."""
    if found.size != written.size:
        sizes = f"{found.size} bytes where {written.size} were written"
        raise DamagedError(Rejection.TORN, f"{name} has {sizes}")
    if found.xxh3_128 != written.xxh3_128:
        sums = f"{found.xxh3_128} where {written.xxh3_128} was written"
        raise DamagedError(Rejection.CHECKSUM, f"{name} has checksum {sums}")


def _checksum(fields: Any) -> str:
    return xxhash.xxh3_128_hexdigest(_canonical(fields))


def _canonical(fields: Any) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


_Form = TypeVar("_Form", Commit, Manifest)


def _decoded(data: bytes, form: type[_Form], name: str) -> _Form:
    try:
        schema = json.loads(data)["schema"]
        if not 1 <= schema <= SCHEMA:
            reason = f"{name} has schema {schema}; this version reads 1 to {SCHEMA}"
            kind = NewerError if schema > SCHEMA else DamagedError
            raise kind(Rejection.UNREADABLE, reason, may_pass=schema > SCHEMA)
        return msgspec.json.decode(data, type=form)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(Rejection.UNREADABLE, f"{name} is not one: {error!r}") from error


def _check_save(said: Commit | Manifest, name: str, place: Place, run_id: str) -> None:
    """Raise `DamagedError` if it is another save's."""
    if (said.step, said.attempt) != (place.step, place.attempt):
        theirs = f"step {said.step} of attempt {said.attempt}"
        raise DamagedError(Rejection.TORN, f"{name} is that of {theirs}, not of {place.name}")
    if said.run_id != run_id:
        reason = f"{name} is of run {said.run_id!r}, not {run_id!r}"
        raise DamagedError(Rejection.UNREADABLE, reason)


def _contradictions(manifest: Manifest) -> list[str]:
    """What cannot be true of any checkpoint."""
    found = [] if STATE in manifest.files else [f"no {STATE}"]
    spans: dict[str, list[tuple[int, int]]] = {}
    for name, tensor in manifest.tensors.items():
        if tensor.dtype not in ITEM_BYTES:
            found.append(f"{name} has unknown dtype {tensor.dtype!r}")
            continue
        spec = Spec(tensor.dtype, tensor.shape)
        if not _covered(tensor.pieces, spec.rows):
            found.append(f"the pieces of {name} do not make up its {spec.rows} rows")
        for piece in tensor.pieces:
            end = piece.begin + spec.of_rows(piece.rows).size_bytes
            spans.setdefault(piece.file, []).append((piece.begin, end))
    return found + [
        problem for file, held in spans.items() for problem in _misfits(manifest, file, held)
    ]


def _misfits(manifest: Manifest, file: str, spans: list[tuple[int, int]]) -> list[str]:
    """Why pieces cannot all be where they are said to be in a file."""
    if file not in manifest.files:
        return [f"pieces are in {file}, which is not listed"]
    spans.sort()
    apart = all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    if spans[0][0] < 0 or spans[-1][1] > manifest.files[file].size or not apart:
        return [f"pieces in {file} overlap, or exceed it"]
    return []


def _covered(pieces: Sequence[PieceRecord], rows: int) -> bool:
    """True if the pieces hold each row exactly once."""
    reached = 0
    for piece in sorted(pieces, key=lambda piece: piece.offset):
        if piece.offset != reached or piece.rows < 0:
            return False
        reached += piece.rows
    return bool(pieces) and reached == rows
