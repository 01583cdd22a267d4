"""The memories that the saver holds for its run's ranks, so that what lies in them outlives these.

It seals each copy in a thread of its own, one after the other, and tells when all ranks' are sealed.
"""

import os
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

from harness.checkpoint import slot
from harness.checkpoint.manifest import Place
from harness.checkpoint.memory import seen
from harness.checkpoint.slot import Label
from harness.checkpoint.tell import said, warn
from harness.events import Event, SaveCommitted, Tier

Key = tuple[int, int]
"""A rank, and which of its memories."""


@dataclass(frozen=True, slots=True)
class Held:
    """One memory."""

    view: memoryview
    descriptor: int
    busy: bool
    """Another saver still writes a save out of it."""
    attempt: int
    """Whose rank handed it over."""

    def __del__(self) -> None:
        """The last who looks at it lets go."""
        os.close(self.descriptor)


class Shelf:
    """All that is held. Its methods are called from any thread."""

    def __init__(self, tell: Callable[[Event, int], None]) -> None:
        self._tell = tell
        self._changed = threading.Condition()
        self._held: dict[Key, Held] = {}
        self._unsealed: dict[Key, bool] = {}
        self._sealing = False
        self._sizes: dict[Place, dict[int, int]] = {}
        self._told: Place | None = None

    def put(
        self, rank: int, number: int, descriptor: int, attempt: int, *, busy: bool = False
    ) -> memoryview:
        """Hold a memory in the place of the one of this name; what lies in it, for reading.

        That of a newer attempt stays: a dead rank's last words may be read late. Raises `ValueError` for one that may shrink.
        """
        try:
            held = Held(seen(os.dup(descriptor)), os.dup(descriptor), busy, attempt)
        finally:
            os.close(descriptor)
        with self._changed:
            newer = self._held.get((rank, number))
            if newer is None or newer.attempt <= attempt:
                self._held[rank, number] = held
        return held.view

    def note(self, rank: int, number: int, *, fresh: bool) -> None:
        """A rank has copied to this memory: seal it when there is time, and tell if it is `fresh`."""
        with self._changed:
            if (rank, number) not in self._held:
                return
            self._unsealed[rank, number] = fresh
            if not self._sealing:
                self._sealing = True
                threading.Thread(target=self._seal_all, name="seal", daemon=True).start()

    def keep(self, rank: int, numbers: Collection[int]) -> None:
        """Let go of all memories of a rank but these."""
        with self._changed:
            for key in [key for key in self._held if key[0] == rank and key[1] not in numbers]:
                del self._held[key]

    def lend(self, rank: int | None, within_s: float) -> list[tuple[Key, Held]]:
        """The memories of a rank, or of all, once all that was copied is sealed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._sealing, within_s)
            found = [(key, held) for key, held in self._held.items() if rank in (None, key[0])]
        for key, held in found:  # a rank may have died after its copy, and before its word of it
            self._seal(key, held, fresh=False)
        return found

    @property
    def is_empty(self) -> bool:
        """True if nothing is held that somebody could resume from."""
        with self._changed:
            held = list(self._held.values())
        return all(slot.label_of(one.view) is None for one in held)

    def clear(self) -> None:
        """Let go of everything."""
        with self._changed:
            self._held.clear()
            self._unsealed.clear()

    def _seal_all(self) -> None:
        while True:
            with self._changed:
                if not self._unsealed:
                    self._sealing = False
                    self._changed.notify_all()
                    return
                key = next(iter(self._unsealed))
                fresh, held = self._unsealed.pop(key), self._held.get(key)
            if held is not None:
                self._seal(key, held, fresh)

    def _seal(self, key: Key, held: Held, fresh: bool) -> None:
        try:
            label = slot.seal(held.view, held.descriptor)
        except Exception as error:  # noqa: BLE001  # the other slot stays, and the storage
            warn(f"what rank {key[0]} copied cannot be sealed: {said(error)}")
            return
        if label is not None and fresh:
            self._count(label)

    def _count(self, label: Label) -> None:
        """Tell of a state once all ranks' shares of it are sealed."""
        place = label.place
        sizes = self._sizes.setdefault(place, {})
        sizes[label.rank] = label.begin + label.size_bytes - slot.DATA
        if len(sizes) < label.world_size:
            return
        self._sizes = {other: those for other, those in self._sizes.items() if other > place}
        if self._told is None or place > self._told or place.attempt > self._told.attempt:
            self._told = place
            self._tell(SaveCommitted(place.step, Tier.MEMORY, sum(sizes.values())), place.attempt)
        with self._changed:  # of a world that had more ranks
            for key in [key for key in self._held if key[0] >= label.world_size]:
                del self._held[key]
