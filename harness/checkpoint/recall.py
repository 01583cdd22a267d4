"""Records beside the checkpoints that were lost are written again from what the commits say.

Without a record of lineage, commits would count for nobody and the run would go on from an older state;
without that of the owner it would not go on at all.
"""

from collections.abc import Collection
from contextlib import suppress

from harness.checkpoint.audit import told_as_damage
from harness.checkpoint.lineage import Departure
from harness.checkpoint.manifest import COMMIT, DamagedError, Place, decode_commit
from harness.checkpoint.store import Store
from harness.checkpoint.tell import warn


def recall(store: Store, committed: Collection[Place], below: int) -> list[int]:
    """Write the lost records of attempts that committed; those for which no commit tells are left.

    Returned are those of them that are newer than every record: what they saved may be the newest
    there is. `below` is the number of the attempt that asks.
    """
    known = store.departures(below)
    unknown: list[int] = []
    for attempt in sorted({place.attempt for place in committed} - known.keys()):
        departure = _told(store, [place for place in committed if place.attempt == attempt])
        if departure is None:
            unknown.append(attempt)
        elif store.recall_lineage(attempt, departure):
            warn(f"the record of attempt {attempt} was lost; it was written again from its commits")
    newest = max(store.departures(below), default=0)
    return [attempt for attempt in unknown if attempt > newest]


def recall_owner(store: Store) -> None:
    """Write the lost record of whose the storage is again, if commits are there and all are this run's.

    Raises `StoreError` where the record is damaged: it may be another run's.
    """
    try:
        store.owner()
    except FileNotFoundError:
        owners = {_owner(store, place) for place in store.committed()} - {None}
        if owners == {store.run_id}:
            store.adopt()
            warn(f"{store.root} had lost the record of its run; it was written again")


def _owner(store: Store, place: Place) -> str | None:
    """The run that made a commit, or None if it cannot be read."""
    with suppress(DamagedError, FileNotFoundError):
        return decode_commit(store.read(f"{place.name}/{COMMIT}")).run_id
    return None


def _told(store: Store, places: list[Place]) -> Departure | None:
    """Where the attempt began that made these commits, if one of them can be read and says so."""
    for place in reversed(places):
        try:
            with told_as_damage():
                commit = decode_commit(store.read(f"{place.name}/{COMMIT}"))
        except DamagedError:
            continue
        said = (commit.run_id, commit.step, commit.attempt)
        if commit.departure is not None and said == (store.run_id, place.step, place.attempt):
            return commit.departure
    return None
