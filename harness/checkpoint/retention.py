"""Deletes what is no longer needed; `policy` decides what that is.

Nothing is deleted that is not surplus beside checkpoints which are still whole, and nothing of a
place that another run owns: a store of another run cannot even be opened. A kill between any two
deletions leaves a place without a commit, which the next retention takes away.
"""

from collections.abc import Collection, Iterator, Mapping

from harness.checkpoint.audit import is_sound
from harness.checkpoint.lineage import Chain
from harness.checkpoint.manifest import COMMIT, REJECTED, Place, UnansweredError
from harness.checkpoint.objects import Entry
from harness.checkpoint.policy import Saved, Spared, is_leftover, surplus
from harness.checkpoint.store import Store, is_own, places_in
from harness.points import Point, reach

_FORGOTTEN_S = 3600.0
"""A record beside the checkpoints takes seconds to write; one half written for so long is dead."""


def retain(store: Store, keep: int) -> Iterator[Place]:
    """Delete what is surplus beside the newest `keep`; yields each place once it is gone."""
    return _retain(store, keep, store.spared)


def make_room(store: Store, keep: int) -> Iterator[Place]:
    """The same where a save has found the storage full: also down to what the user calls enough.

    What is spared for its age goes too, then; what is spared for its step never does.
    """
    spared = store.spared
    if spared.at_least:
        keep, spared = min(keep, spared.at_least), Spared(every_steps=spared.every_steps)
    return _retain(store, keep, spared)


def _retain(store: Store, keep: int, spared: Spared) -> Iterator[Place]:
    reach(Point.RETENTION)
    chain, listed = store.chain(), store.listing()
    places = {place.name: place for place in places_in(listed)}
    for place in _leftovers(places.values(), listed, chain.newest):
        store.remove(place, _between)
    on_chain, off_chain = _saved(store, places, listed, chain)
    for saved in surplus(on_chain, off_chain, keep, spared):
        store.remove(places[saved.name], _between)
        yield places[saved.name]


def sweep(store: Store, attempt: int) -> None:
    """Delete what attempts older than `attempt`, which are dead or zombies, left half written."""
    listed = store.inventory()
    for place in places_in(listed):
        if place.attempt < attempt and f"{place.name}/{COMMIT}" not in listed:
            store.remove(place, _between)

    def is_dead(name: str, age_s: float) -> bool:
        place = Place.parse(name.partition("/")[0])
        if place is not None:
            return place.attempt < attempt
        return is_own(name) and age_s > _FORGOTTEN_S

    store.sweep(is_dead)


def _between() -> None:
    reach(Point.RETENTION)


def _leftovers(
    places: Collection[Place], listed: Mapping[str, Entry], newest_attempt: int | None
) -> list[Place]:
    """Saves that no commit makes one, and none will."""
    last: dict[int, int] = {}
    unfinished: list[Place] = []
    for place in sorted(places):
        if f"{place.name}/{COMMIT}" in listed:
            last[place.attempt] = max(place.step, last.get(place.attempt, 0))
        else:
            unfinished.append(place)
    return [
        place
        for place in unfinished
        if is_leftover(place.step, place.attempt, newest_attempt, last.get(place.attempt))
    ]


def _saved(
    store: Store, places: Mapping[str, Place], listed: Mapping[str, Entry], chain: Chain
) -> tuple[list[Saved], list[Saved]]:
    """What was committed, on the chain and off it. What was set aside as damaged is neither.

    Nor is what cannot be read now.
    """
    sizes = {name: entry.size_bytes for name, entry in listed.items()}
    on_chain: list[Saved] = []
    off_chain: list[Saved] = []
    for name, place in places.items():
        commit = listed.get(f"{name}/{COMMIT}")
        if commit is None or f"{name}/{REJECTED}" in listed:
            continue
        accepted = chain.accepts(place.step, place.attempt)
        try:
            sound = accepted and is_sound(store, place, sizes)
        except UnansweredError:
            continue  # it counts for nothing now, and stays until it can be told
        saved = Saved(place.step, place.attempt, name, sound, commit.written_s)
        (on_chain if accepted else off_chain).append(saved)
    return on_chain, off_chain
