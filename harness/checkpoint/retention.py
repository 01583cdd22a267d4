"""Deletes what is no longer needed; `policy.surplus` decides what that is.

Nothing is deleted that is not surplus beside checkpoints which are still whole, and nothing of a
place that another run owns: a store of another run cannot even be opened.
"""

from collections.abc import Iterator

from harness.checkpoint.audit import is_sound
from harness.checkpoint.manifest import Place
from harness.checkpoint.policy import Saved, surplus
from harness.checkpoint.store import Store
from harness.points import Point, reach


def retain(store: Store, keep: int) -> Iterator[Place]:
    """Delete what is surplus beside the newest `keep`; yields each place once it is gone."""
    reach(Point.RETENTION)
    chain = store.chain()
    on_chain: list[Saved] = []
    off_chain: list[Saved] = []
    places: dict[str, Place] = {}
    for place in store.places():
        if not store.is_committed(place):
            continue
        accepted = chain.accepts(place.step, place.attempt)
        saved = Saved(place.step, place.attempt, place.name, accepted and is_sound(store, place))
        (on_chain if accepted else off_chain).append(saved)
        places[place.name] = place
    for saved in surplus(on_chain, off_chain, keep):
        store.remove(places[saved.name])
        yield places[saved.name]


def sweep(store: Store, attempt: int) -> None:
    """Delete what attempts older than `attempt`, which are dead or zombies, left half written."""
    for place in store.places():
        if place.attempt < attempt and not store.is_committed(place):
            store.remove(place)
