"""What one process does for a save on behalf of all ranks: gather what they wrote, describe it, commit it.

The order is the promise: every shard durable, then the state's JSON, the manifest, their names, and
the commit last. Before that the directory is nothing; a save that fails takes it away.
"""

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from harness.checkpoint.lineage import Departure
from harness.checkpoint.manifest import (
    COMMIT,
    MANIFEST,
    SCHEMA,
    STATE,
    Commit,
    FileRecord,
    Manifest,
    Place,
    TensorRecord,
    encode_commit,
    encode_manifest,
)
from harness.checkpoint.messages import Channel, SilenceError
from harness.checkpoint.share import Report
from harness.checkpoint.store import Store
from harness.points import Point, reach


class SaveError(RuntimeError):
    """A save cannot be committed."""


def pack(report: Report) -> bytes:
    """A report as a message; compressed, since a store refuses messages of several MB."""
    return zlib.compress(msgspec.json.encode(report), 1)


def gather(
    channel: Channel, number: int, mine: Report, world_size: int, within_s: float
) -> list[Report]:
    """Every rank's report on save `number`, by rank.

    Raises `SaveError` at the first one that failed, and when one has not come `within_s` seconds.
    """
    reports = {mine.rank: mine}
    _whole(mine)
    until_s = time.monotonic() + within_s
    for place in range(1, world_size):
        left_s = until_s - time.monotonic()
        try:
            _, message = channel.hear(f"{number}/reports/{place}", within_s=left_s)
        except SilenceError as error:
            missing = ", ".join(str(rank) for rank in range(world_size) if rank not in reports)
            raise SaveError(f"no report of rank {missing} within {within_s:g} s") from error
        report = msgspec.json.decode(zlib.decompress(message), type=Report)
        _whole(report)
        reports[report.rank] = report
    return [reports[rank] for rank in range(world_size)]


def _whole(report: Report) -> None:
    if report.failure is not None:
        raise SaveError(f"rank {report.rank}: {report.failure}")


def check_layouts(layouts: Sequence[str]) -> None:
    """Raise `SaveError` unless all ranks, in their order, divided the same shared tensors."""
    strangers = [rank for rank, layout in enumerate(layouts) if layout != layouts[0]]
    if strangers:
        raise SaveError(
            f"the shared tensors of rank {strangers[0]} differ from rank 0's in name, dtype or shape"
        )


def publish(
    store: Store,
    place: Place,
    reports: Sequence[Report],
    fingerprint: Mapping[str, str],
    may_commit: Callable[[], None],
) -> int:
    """Make the save one that can be resumed from; its size in bytes.

    Raises `SaveError` if the ranks do not hold the same shared state, or if this attempt is no
    longer the newest; `may_commit` is asked last and raises to refuse.
    """
    check_layouts([report.layout for report in reports])
    files = {name: record for report in reports for name, record in report.files.items()}
    files[STATE] = store.write(f"{place.name}/{STATE}", [state_of(reports)])
    reach(Point.SAVE_MANIFEST)
    manifest = Manifest(
        schema=SCHEMA,
        run_id=store.run_id,
        step=place.step,
        attempt=place.attempt,
        world_size=len(reports),
        fingerprint=fingerprint,
        files=files,
        tensors=merged(reports),
    )
    written = store.write(f"{place.name}/{MANIFEST}", [encode_manifest(manifest)])
    reach(Point.SAVE_COMMIT)
    departure = _check_lineage(store, place)
    may_commit()
    return _commit(store, place, written, departure) + sum(record.size for record in files.values())


def _commit(store: Store, place: Place, manifest: FileRecord, departure: Departure) -> int:
    commit = Commit(SCHEMA, store.run_id, place.step, place.attempt, manifest, departure)
    data = encode_commit(commit)
    if not store.create(f"{place.name}/{COMMIT}", data):
        raise SaveError(f"{place.name} was committed by someone else")
    with suppress(OSError, ValueError):  # committed is committed
        store.note_newest(place)
    return manifest.size + len(data)


def _check_lineage(store: Store, place: Place) -> Departure:
    """A commit that no reader would accept is not made; where its attempt began."""
    departures = store.departures()
    chain = store.chain_of(departures)
    if chain.newest is not None and chain.newest > place.attempt:
        raise SaveError(f"attempt {chain.newest} has taken over from attempt {place.attempt}")
    if not chain.accepts(place.step, place.attempt):
        raise SaveError(f"attempt {place.attempt} never recorded what it resumed from")
    return departures[place.attempt]


def state_of(reports: Sequence[Report]) -> bytes:
    """The state's JSON, out of all ranks' skeletons."""
    own = ",\n".join(report.own for report in reports)
    return f'{{"schema": {SCHEMA},\n"shared": {reports[0].shared},\n"own": [{own}]}}\n'.encode()


def merged(reports: Sequence[Report]) -> dict[str, TensorRecord]:
    """Every tensor with the pieces of all ranks."""
    merged: dict[str, TensorRecord] = {}
    for report in reports:
        for name, tensor in report.tensors.items():
            before = merged[name].pieces if name in merged else ()
            merged[name] = TensorRecord(tensor.dtype, tensor.shape, (*before, *tensor.pieces))
    return merged
