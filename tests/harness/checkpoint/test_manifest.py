import dataclasses
import json

import pytest

from harness.checkpoint.manifest import (
    STATE,
    Commit,
    DamagedError,
    FileRecord,
    Manifest,
    PieceRecord,
    Place,
    TensorRecord,
    decode_commit,
    decode_manifest,
    encode_commit,
    encode_manifest,
    record,
)
from harness.events import Rejection

PLACE = Place(1200, 7)
SHARD = "shard-00000-of-00001.safetensors"


def manifest(**changes) -> Manifest:
    tensor = TensorRecord("F32", (4, 2), (PieceRecord(SHARD, "shared/w", 0, 4, 64),))
    fields = {
        "schema": 1,
        "run_id": "run",
        "step": 1200,
        "attempt": 7,
        "world_size": 1,
        "fingerprint": {"torch": "2.13"},
        "files": {SHARD: FileRecord(100, "a"), STATE: FileRecord(10, "b")},
        "tensors": {"shared/w": tensor},
    }
    return Manifest(**{**fields, **changes})


def committed(of: Manifest) -> tuple[bytes, Commit]:
    data = encode_manifest(of)
    return data, Commit(1, "run", 1200, 7, record(data))


def test_a_place_has_a_name_that_tells_it_apart():
    assert PLACE.name == "step-00001200-7"
    assert Place(1200, 7, 2).name == "step-00001200-7-try-2"
    assert Place(123_456_789, 12).name == "step-123456789-12"
    for place in (PLACE, Place(1200, 7, 2), Place(123_456_789, 12)):
        assert Place.parse(place.name) == place


@pytest.mark.parametrize(
    "name",
    [
        "step-1200-7",
        "step-00001200",
        "step-00001200-7.tmp",
        "attempts",
        "step-00001200-7-try-1",
        "step-00001200-07",
        "xstep-00001200-7",
    ],
)
def test_other_directories_are_none_of_ours(name):
    assert Place.parse(name) is None


def test_manifest_and_commit_come_back():
    data, commit = committed(manifest())

    assert decode_commit(encode_commit(commit)) == commit
    assert decode_manifest(data, commit, PLACE, "run") == manifest(
        tensors={
            "shared/w": TensorRecord("F32", (4, 2), [PieceRecord(SHARD, "shared/w", 0, 4, 64)])
        }
    )


def test_any_flipped_bit_and_any_cut_of_a_commit_is_found():
    _, commit = committed(manifest())
    data = encode_commit(commit)
    for number in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[number] ^= 1 << bit
            with pytest.raises(DamagedError):
                decode_commit(bytes(flipped))
        with pytest.raises(DamagedError):
            decode_commit(data[:number])


def test_fields_of_a_newer_version_are_passed_over():
    data, commit = committed(manifest())
    fields = json.loads(data)
    fields["later"] = [1]
    more = json.dumps(fields).encode()
    commit = dataclasses.replace(commit, manifest=record(more))

    assert decode_manifest(more, commit, PLACE, "run").step == 1200


@pytest.mark.parametrize(
    ("changes", "rejection", "said"),
    [
        ({"schema": 2}, Rejection.UNREADABLE, "has schema 2; this version reads 1 to 1"),
        (
            {"step": 1300},
            Rejection.TORN,
            "is that of step 1300 of attempt 7, not of step-00001200-7",
        ),
        ({"attempt": 8}, Rejection.TORN, "is that of step 1200 of attempt 8"),
        ({"run_id": "other"}, Rejection.UNREADABLE, "is of run 'other', not 'run'"),
        ({"files": {SHARD: FileRecord(1, "a")}}, Rejection.UNREADABLE, "no state.json"),
        (
            {"files": {STATE: FileRecord(1, "a")}},
            Rejection.UNREADABLE,
            f"pieces are in {SHARD}, which is not listed",
        ),
        (
            {"tensors": {"shared/w": TensorRecord("F12", (4,), ())}},
            Rejection.UNREADABLE,
            "shared/w has unknown dtype 'F12'",
        ),
    ],
)
def test_a_manifest_that_cannot_be_true_is_rejected(changes, rejection, said):
    data, commit = committed(manifest(**changes))

    with pytest.raises(DamagedError) as caught:
        decode_manifest(data, commit, PLACE, "run")

    assert caught.value.rejection is rejection
    assert said in caught.value.reason


@pytest.mark.parametrize(
    "pieces", [[], [(0, 3)], [(1, 3)], [(0, 2), (3, 1)], [(0, 3), (2, 2)], [(0, 5), (5, -1)]]
)
def test_pieces_that_do_not_make_up_the_tensor_are_found(pieces):
    records = [PieceRecord(SHARD, "shared/w", offset, rows, 8 * offset) for offset, rows in pieces]
    data, commit = committed(manifest(tensors={"shared/w": TensorRecord("F32", (4, 2), records)}))

    with pytest.raises(DamagedError, match="do not make up its 4 rows"):
        decode_manifest(data, commit, PLACE, "run")


@pytest.mark.parametrize(
    "begins",
    [(64, 79), (64, 85), (-1, 80), (64, 64)],
    ids=["overlap", "exceed", "before", "same"],
)
def test_pieces_that_cannot_be_where_they_are_said_to_be_are_found(begins):
    first, second = begins
    halves = [
        PieceRecord(SHARD, "shared/w", 0, 2, first),
        PieceRecord(SHARD, "shared/w", 2, 2, second),
    ]
    data, commit = committed(manifest(tensors={"shared/w": TensorRecord("F32", (4, 2), halves)}))

    with pytest.raises(DamagedError, match=f"pieces in {SHARD} overlap, or exceed it"):
        decode_manifest(data, commit, PLACE, "run")


def test_a_manifest_of_another_save_is_not_the_committed_one():
    _, commit = committed(manifest())
    other = encode_manifest(manifest(fingerprint={"torch": "2.14"}))

    with pytest.raises(DamagedError) as caught:
        decode_manifest(other, commit, PLACE, "run")

    assert caught.value.rejection is Rejection.CHECKSUM
