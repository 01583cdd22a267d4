"""A record of lineage that was lost is written again from what its attempt's commits say.

Without it these commits would count for nobody, and the run would go on from an older state.
"""

from collections.abc import Collection

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
