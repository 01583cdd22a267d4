"""The thread that writes: training hands it a copied share and goes on.

One save is in flight at a time. Whatever goes wrong here, of whatever kind, ends that save and
nothing else: an event, one line on stderr, and the half-written directory is gone.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from queue import SimpleQueue

import msgspec

from harness.checkpoint import retention
from harness.checkpoint.commit import SaveError, gather, pack, publish
from harness.checkpoint.manifest import Place
from harness.checkpoint.messages import Channel
from harness.checkpoint.policy import Progress
from harness.checkpoint.share import Report, Share, write
from harness.checkpoint.store import Store
from harness.checkpoint.tell import Records, said, warn
from harness.events import CheckpointDeleted, Event, SaveCommitted, SaveFailed, Tier


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a save ended, told to all ranks."""

    committed: bool
    reason: str = ""


@dataclass(slots=True)
class Flight:
    """The save in flight on this rank."""

    number: int
    """Counts the questions of this attempt, so it names one save on all ranks."""
    place: Place
    share: Share | None
    failure: str | None
    """Why there is no share."""
    since_s: float
    begun: bool = False
    """Its directory was made, by this save and no other."""
    committing: bool = False
    told: bool = False
    """Its failure was reported already."""


class Writer:
    """Writes this rank's shares; on rank 0 it also commits, deletes and tells."""

    def __init__(
        self,
        store: Store,
        channel: Channel,
        rank: int,
        world_size: int,
        attempt: int,
        recorder: Records,
        fingerprint: Mapping[str, str],
        keep: int,
        deadline_s: float,
    ) -> None:
        self._store = store
        self._channel = channel
        self._rank = rank
        self._world_size = world_size
        self._attempt = attempt
        self._recorder = recorder
        self._fingerprint = fingerprint
        self._keep = keep
        self._deadline_s = deadline_s
        self._changed = threading.Condition()
        self._flight: Flight | None = None
        self._durable_step: int | None = None
        self._clean_to = 0
        self._saves: list[int] = []
        self._queue: SimpleQueue[Flight | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="checkpoint-writer", daemon=True)
        self._thread.start()

    # ── for the training thread ─────────────────────────────────────────────────────────────

    def submit(self, number: int, place: Place, share: Share | None, failure: str | None) -> None:
        """Hand over a share that was copied, or say why there is none."""
        with self._changed:
            assert self._flight is None, "one save in flight at a time"
            self._flight = Flight(number, place, share, failure, time.monotonic())
            self._saves.append(number)
            self._queue.put(self._flight)

    def progress(self) -> Progress:
        """What this rank knows of its attempt's saves."""
        with self._changed:
            flight, durable = self._flight, self._durable_step
        if flight is None:
            return Progress(durable_step=durable)
        return Progress(flight.place.step, time.monotonic() - flight.since_s, durable)

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight; False if something still is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._flight is None, timeout_s)

    def give_up(self, reason: str) -> None:
        """Say that the save in flight will not become durable; it is then never committed."""
        with self._changed:
            flight = self._flight
        if flight is not None and not flight.committing:
            self._tell_failure(flight, reason)

    def fail(self, step: int, reason: str) -> None:
        """Say, on rank 0, that the state of `step` will not become durable."""
        if self._rank == 0:
            self.tell(SaveFailed(step, Tier.STORAGE, reason))
            warn(f"the save of step {step} failed: {reason}; training goes on")

    def tell(self, event: Event) -> None:
        """Record an event of the whole job; that failing stops nothing."""
        if self._rank != 0:
            return
        try:
            self._recorder.write(event)
        except Exception as error:  # noqa: BLE001  # the disk of the log may be the full one
            warn(f"{event} cannot be recorded: {said(error)}")

    def close(self, timeout_s: float) -> None:
        """End the thread once it has written what it has."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def forget(self, end: int) -> None:
        """Delete the messages on all questions before number `end`, which every rank has read."""
        self._channel.forget(f"answer/{number}" for number in range(self._clean_to, end))
        for number in (number for number in self._saves if number < end):
            self._channel.forget([f"{number}/begun", f"{number}/verdict"])
            self._channel.forget_list(f"{number}/reports", self._world_size - 1)

    # ── the thread ──────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        if self._rank == 0:
            self._sweep()
        while (flight := self._queue.get()) is not None:
            verdict = self._carried_out(flight)
            with self._changed:
                self._flight = None
                if verdict.committed:
                    self._durable_step = flight.place.step
                    self._clean_to = flight.number
                    self._saves = [number for number in self._saves if number >= flight.number]
                self._changed.notify_all()

    def _carried_out(self, flight: Flight) -> Verdict:
        try:
            if self._rank == 0:
                return self._lead(flight)
            report = self._written(flight)
            self._channel.append(f"{flight.number}/reports", pack(report))
            return self._verdict(flight)
        except BaseException as error:  # noqa: BLE001  # some checkpoint errors are no `Exception`
            return Verdict(False, _why(error))

    def _written(self, flight: Flight) -> Report:
        """Write this rank's share; a failure is a report too."""
        try:
            if flight.share is None:
                return Report(self._rank, flight.failure)
            if self._rank == 0:
                self._store.begin(flight.place)
                flight.begun = True
                self._channel.post(f"{flight.number}/begun", b"")
            else:
                self._await_begin(flight)
            return write(flight.share, flight.place, self._store)
        except BaseException as error:  # noqa: BLE001  # some checkpoint errors are no `Exception`
            return Report(self._rank, _why(error))

    def _await_begin(self, flight: Flight) -> None:
        begun, verdict = f"{flight.number}/begun", f"{flight.number}/verdict"
        key, _ = self._channel.hear(verdict, begun, within_s=self._deadline_s)
        if key == verdict:
            raise SaveError("the save had failed already")

    def _verdict(self, flight: Flight) -> Verdict:
        within_s = 2 * self._deadline_s  # rank 0 may wait one for us, and then has files to write
        _, message = self._channel.hear(f"{flight.number}/verdict", within_s=within_s)
        return msgspec.json.decode(message, type=Verdict)

    # ── rank 0 ──────────────────────────────────────────────────────────────────────────────

    def _lead(self, flight: Flight) -> Verdict:
        verdict = self._concluded(flight)
        try:
            if verdict.committed:
                self.forget(flight.number)
            self._channel.post(f"{flight.number}/verdict", msgspec.json.encode(verdict))
        except Exception as error:  # noqa: BLE001  # durable is durable, whoever hears of it
            warn(f"the other ranks cannot be told of {flight.place.name}: {said(error)}")
        return verdict

    def _concluded(self, flight: Flight) -> Verdict:
        try:
            mine = self._written(flight)
            reports = gather(self._channel, flight.number, mine, self._world_size, self._deadline_s)
            size = publish(
                self._store,
                flight.place,
                reports,
                self._fingerprint,
                lambda: self._may_commit(flight),
            )
        except BaseException as error:  # noqa: BLE001  # some checkpoint errors are no `Exception`
            self._tell_failure(flight, _why(error))
            if flight.begun:
                self._discard(flight.place)
            return Verdict(False, _why(error))
        self.tell(SaveCommitted(flight.place.step, Tier.STORAGE, size))
        self._retain()
        return Verdict(True)

    def _may_commit(self, flight: Flight) -> None:
        with self._changed:
            if flight.told:
                raise SaveError("it was given up")
            flight.committing = True

    def _tell_failure(self, flight: Flight, reason: str) -> None:
        with self._changed:
            if flight.told:
                return
            flight.told = True
        self.fail(flight.place.step, reason)

    def _discard(self, place: Place) -> None:
        try:
            self._store.remove(place)
        except BaseException as error:  # noqa: BLE001  # a later attempt sweeps it
            warn(f"{place.name}, which failed, cannot be removed: {said(error)}")

    def _retain(self) -> None:
        try:
            for place in retention.retain(self._store, self._keep):
                self.tell(CheckpointDeleted(place.step, place.attempt))
        except BaseException as error:  # noqa: BLE001  # what is too much now goes next time
            warn(f"old checkpoints cannot be deleted: {said(error)}")

    def _sweep(self) -> None:
        try:
            retention.sweep(self._store, self._attempt)
        except BaseException as error:  # noqa: BLE001  # it costs room, nothing else
            warn(f"leftovers of dead attempts cannot be deleted: {said(error)}")


def _why(error: BaseException) -> str:
    """The reason of a failed save; our own errors need no name."""
    return str(error) if isinstance(error, SaveError) else said(error)
