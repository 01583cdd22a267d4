"""What a copy in memory says of itself, so that it can be resumed from after the rank that took it.

A label in front names the state, and is written last: while the copy is taken there is none. The seal
holds the files' checksums, and is written by whoever had the time, long after training has gone on; it
belongs to the one label whose nonce it bears.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import xxhash

from harness.checkpoint.manifest import FileRecord, Place
from harness.checkpoint.share import Share

DATA = 64 << 10
"""Where the files begin; before them is room for the label and the seal."""
_SEAL = 4 << 10
_FRAME = 16  # length, then checksum
_PORTION_BYTES = 256 << 10
_AFTER = 64


class Label(msgspec.Struct, frozen=True):
    """Which state a copy is of, and where it says the rest."""

    run_id: str
    place: Place
    rank: int
    world_size: int
    nonce: str
    """No other copy's."""
    begin: int
    """Where the description of the share begins, behind the files."""
    size_bytes: int
    checksum: str


class About(msgspec.Struct, frozen=True):
    """What the bytes of a copy are."""

    share: Share
    fingerprint: Mapping[str, str]


class Seal(msgspec.Struct, frozen=True):
    """The checksums of a copy's files, in their order."""

    nonce: str
    xxh3_128: Sequence[str]


@dataclass(frozen=True, slots=True)
class Kept:
    """A copy that is whole, by what it says of itself; its bytes are yet to be checked."""

    label: Label
    about: About
    files: Sequence[FileRecord]
    memory: memoryview


def room(files_end: int, share: Share, fingerprint: Mapping[str, str]) -> int:
    """Bytes of a slot for files that end there and the description of the share."""
    return _behind(files_end) + len(_described(share, fingerprint))


def tear(memory: memoryview) -> None:
    """From here on the memory holds nothing; before a copy is written over what was there."""
    memory[:8].cast("Q")[0] = 0  # one store, which no kill cuts in two


def put_label(
    memory: memoryview,
    run_id: str,
    place: Place,
    world_size: int,
    files_end: int,
    share: Share,
    fingerprint: Mapping[str, str],
) -> None:
    """Say what was copied: from here on it counts."""
    described = _described(share, fingerprint)
    begin = _behind(files_end)
    memory[begin : begin + len(described)] = described
    label = Label(
        run_id,
        place,
        share.rank,
        world_size,
        os.urandom(8).hex(),
        begin,
        len(described),
        xxhash.xxh3_128_hexdigest(described),
    )
    body = msgspec.msgpack.encode(label)
    memory[8:_FRAME] = _sum(body)
    memory[_FRAME : _FRAME + len(body)] = body
    memory[:8].cast("Q")[0] = len(body)


def label_of(memory: memoryview) -> Label | None:
    """Which state lies there, or None where none does."""
    body = _framed(memory[:_SEAL])
    try:
        return None if body is None else msgspec.msgpack.decode(body, type=Label)
    except msgspec.MsgspecError:
        return None


def about(memory: memoryview, label: Label) -> About | None:
    """What its bytes are, or None if that is not what was written, or was by another version of this."""
    described = bytes(memory[label.begin : label.begin + label.size_bytes])
    if xxhash.xxh3_128_hexdigest(described) != label.checksum:
        return None
    try:
        return msgspec.msgpack.decode(described, type=About)
    except msgspec.MsgspecError:
        return None


def seal(memory: memoryview, descriptor: int) -> Label | None:
    """Count the copy's bytes and write that down; the label, or None where none stayed as it was."""
    label = label_of(memory)
    known = None if label is None else about(memory, label)
    if label is None or known is None:
        return None
    if kept(memory) is not None:
        return label
    sums = [checksum(memory[s.begin : s.begin + s.size_bytes]) for s in known.share.shards]
    if label_of(memory) != label:  # another copy has begun meanwhile
        return None
    body = msgspec.msgpack.encode(Seal(label.nonce, sums))
    if _FRAME + len(body) > DATA - _SEAL:
        return None
    os.pwrite(descriptor, len(body).to_bytes(8, "little") + _sum(body) + body, _SEAL)
    return label


def kept(memory: memoryview) -> Kept | None:
    """The copy that lies there, if it has a label and a seal."""
    label, sealed = label_of(memory), _seal_of(memory)
    if label is None or sealed is None or sealed.nonce != label.nonce:
        return None
    known = about(memory, label)
    if known is None or len(known.share.shards) != len(sealed.xxh3_128):
        return None
    files = [
        FileRecord(shard.size_bytes, one)
        for shard, one in zip(known.share.shards, sealed.xxh3_128, strict=True)
    ]
    return Kept(label, known, files, memory)


def whole(found: Iterable[Kept]) -> dict[Place, list[Kept]]:
    """The states of which every rank's share is there, by rank; of two copies of one share, either."""
    shares: dict[Place, dict[int, Kept]] = {}
    for one in found:
        shares.setdefault(one.label.place, {})[one.label.rank] = one
    ordered = {place: [those[rank] for rank in sorted(those)] for place, those in shares.items()}
    return {place: it for place, it in ordered.items() if len(it) == it[0].label.world_size}


def checksum(content: memoryview) -> str:
    """As of a file that holds this."""
    counted = xxhash.xxh3_128()
    for begin in range(0, len(content), _PORTION_BYTES):
        counted.update(content[begin : begin + _PORTION_BYTES])
    return counted.hexdigest()


def _seal_of(memory: memoryview) -> Seal | None:
    body = _framed(memory[_SEAL:DATA])
    try:
        return None if body is None else msgspec.msgpack.decode(body, type=Seal)
    except msgspec.MsgspecError:
        return None


def _framed(memory: memoryview) -> bytes | None:
    """What was written there whole, or None."""
    if len(memory) < _FRAME:
        return None
    length = int.from_bytes(memory[:8], "little")
    if not 0 < length <= len(memory) - _FRAME:
        return None
    expected, body = bytes(memory[8:_FRAME]), bytes(memory[_FRAME : _FRAME + length])
    return body if _sum(body) == expected else None


def _sum(body: bytes) -> bytes:
    return xxhash.xxh3_64_digest(body)


def _behind(files_end: int) -> int:
    return files_end + -files_end % _AFTER


def _described(share: Share, fingerprint: Mapping[str, str]) -> bytes:
    return msgspec.msgpack.encode(About(share, fingerprint))
