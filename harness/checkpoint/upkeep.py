"""What is deleted around a save. None of it failing is a failure of the save: one line says so."""

import errno
from collections.abc import Callable, Iterator

from harness.checkpoint import retention
from harness.checkpoint.manifest import COMMIT, Place
from harness.checkpoint.store import Store, places_in
from harness.checkpoint.tell import said, warn
from harness.events import CheckpointDeleted, Event


def discard(store: Store, place: Place) -> None:
    """Take away a save that failed."""
    try:
        store.remove(place)
    except BaseException as error:  # noqa: BLE001  # a later attempt sweeps it
        warn(f"{place.name}, which failed, cannot be removed: {said(error)}")


def prune(
    store: Store,
    keep: int,
    tell: Callable[[Event], None],
    may_go_on: Callable[[], bool] = lambda: True,
) -> None:
    """Delete what is too much beside the newest `keep`, for as long as `may_go_on` says."""
    _delete(lambda: retention.retain(store, keep), tell, may_go_on)


def make_room(
    store: Store,
    keep: int,
    reason: str,
    tell: Callable[[Event], None],
    may_go_on: Callable[[], bool] = lambda: True,
) -> None:
    """After a save that failed for `reason`: if that was lack of room, delete what may go for it."""
    if any(f"[Errno {number}]" in reason for number in (errno.ENOSPC, errno.EDQUOT)):
        _delete(lambda: retention.make_room(store, keep), tell, may_go_on)


def _delete(
    places: Callable[[], Iterator[Place]],
    tell: Callable[[Event], None],
    may_go_on: Callable[[], bool],
) -> None:
    try:
        if may_go_on():
            for place in places():
                tell(CheckpointDeleted(place.step, place.attempt))
                if not may_go_on():
                    return
    except BaseException as error:  # noqa: BLE001  # what is too much now goes next time
        warn(f"old checkpoints cannot be deleted: {said(error)}")


def sweep(store: Store, attempt: int) -> None:
    """Delete what attempts before `attempt` left half written."""
    try:
        retention.sweep(store, attempt)
    except BaseException as error:  # noqa: BLE001  # it costs room, nothing else
        warn(f"leftovers of dead attempts cannot be deleted: {said(error)}")


def sweep_own(store: Store, place: Place) -> None:
    """Delete what a saver that died left of this attempt's saves before that at `place`."""

    def is_left(other: Place | None) -> bool:
        return other is not None and other.attempt == place.attempt and other != place

    try:
        listed = store.inventory()
        for other in places_in(listed):
            if is_left(other) and f"{other.name}/{COMMIT}" not in listed:
                store.remove(other)
        store.sweep(lambda name, _: is_left(Place.parse(name.partition("/")[0])))
    except BaseException as error:  # noqa: BLE001  # as above
        warn(f"leftovers of a dead saver cannot be deleted: {said(error)}")
