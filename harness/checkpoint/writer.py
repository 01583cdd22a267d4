"""The thread that carries saves: training hands it a copied share and goes on.

One save is in flight at a time. Whatever goes wrong here, of whatever kind, ends that save and
nothing else. Who writes is the carrier's matter: this process, or the node's saver.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from harness.checkpoint.commit import SaveError
from harness.checkpoint.manifest import Place
from harness.checkpoint.memory import Memory
from harness.checkpoint.policy import Progress
from harness.checkpoint.share import Share
from harness.checkpoint.tell import said


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a save ended, told to all ranks."""

    committed: bool
    reason: str = ""
    lost: bool = False
    """Who was to write has gone: the same may be asked again of whoever takes its place."""


@dataclass(slots=True)
class Flight:
    """The save in flight on this rank."""

    number: int
    """Counts the questions of this attempt, so it names one save on all ranks."""
    place: Place
    share: Share | None
    memory: Memory | None
    """Where the share's bytes are."""
    failure: str | None
    """Why there is no share."""
    since_s: float
    slot: int = 0
    """Which of the rank's memories that is."""
    ready: Callable[[], None] = lambda: None
    """Waits until the share is copied; raises if it never will be."""
    begun: bool = False
    """Its directory was made, by this save and no other."""
    committing: bool = False
    told: bool = False
    """Its failure was reported already."""


class Carrier(Protocol):
    """Makes one rank's part of a save durable, together with the other ranks' carriers."""

    def carry(self, flight: Flight) -> Verdict:
        """Make it durable, or tell why not; called in the thread. May raise anything."""

    def give_up(self, flight: Flight, reason: str) -> None:
        """Say, on rank 0, that the save in flight will not become durable."""

    def excuse(self, number: int, place: Place, failure: str) -> None:
        """Say why this rank has no share of a save that it cannot carry."""

    def absent_s(self) -> float:
        """For how long there has been no one who writes; 0 if there is someone."""

    def close(self) -> None:
        """Let go; all ranks have said that they are done."""


class Writer:
    """One rank's thread."""

    def __init__(
        self, carrier: Carrier, first: Callable[[], None], committed: Callable[[int], None]
    ) -> None:
        """`first` is called in the thread before all, `committed` with each number that was."""
        self._carrier = carrier
        self._first = first
        self._committed = committed
        self._changed = threading.Condition()
        self._flight: Flight | None = None
        self._durable_step: int | None = None
        self._lost = False
        self._commit_s = 0.0
        self._queue: SimpleQueue[Flight | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="checkpoint-writer", daemon=True)
        self._thread.start()

    @property
    def commit_s(self) -> float:
        """How long the last save took from its copy until it was durable; 0 before the first."""
        with self._changed:
            return self._commit_s

    @property
    def lost(self) -> bool:
        """True if the last save failed because whoever was to write it had gone."""
        with self._changed:
            return self._lost

    def submit(
        self,
        number: int,
        place: Place,
        share: Share | None,
        memory: Memory | None,
        failure: str | None,
        slot: int = 0,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Hand over a share that was copied, or say why there is none."""
        with self._changed:
            assert self._flight is None, "one save in flight at a time"
            self._flight = Flight(
                number, place, share, memory, failure, time.monotonic(), slot, ready
            )
            self._queue.put(self._flight)

    def progress(self) -> Progress:
        """What this rank knows of its attempt's saves."""
        with self._changed:
            flight, durable = self._flight, self._durable_step
        if flight is None:
            return Progress(durable_step=durable, absent_s=self._carrier.absent_s())
        return Progress(flight.place.step, time.monotonic() - flight.since_s, durable)

    @property
    def busy(self) -> Memory | None:
        """The memory that the save in flight is written out of."""
        with self._changed:
            return None if self._flight is None else self._flight.memory

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight; False if something still is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._flight is None, timeout_s)

    def give_up(self, reason: str) -> None:
        """Say that the save in flight will not become durable; it is then never committed."""
        with self._changed:
            flight = self._flight
        if flight is not None:
            self._carrier.give_up(flight, reason)

    def close(self, timeout_s: float) -> None:
        """End the thread once it has written what it has."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        self._first()
        while (flight := self._queue.get()) is not None:
            verdict = self._carried(flight)
            with self._changed:
                self._flight = None
                self._lost = verdict.lost
                if verdict.committed:
                    self._durable_step = flight.place.step
                    self._commit_s = time.monotonic() - flight.since_s
                self._changed.notify_all()

    def _carried(self, flight: Flight) -> Verdict:
        try:
            flight.ready()
        except BaseException as error:  # noqa: BLE001  # some checkpoint errors are no `Exception`
            flight.share, flight.memory, flight.failure = None, None, said(error)
        try:
            verdict = self._carrier.carry(flight)
            if verdict.committed:
                self._committed(flight.number)
        except BaseException as error:  # noqa: BLE001  # some checkpoint errors are no `Exception`
            return Verdict(False, why(error))
        return verdict


def why(error: BaseException) -> str:
    """The reason of a failed save; our own errors need no name."""
    return str(error) if isinstance(error, SaveError) else said(error)
