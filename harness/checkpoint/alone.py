"""Carries saves within the ranks, where there is no saver: under plain `torchrun`.

Each rank writes its own share. Rank 0 hears what all of them wrote, commits, deletes and tells.
"""

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import msgspec

from harness.checkpoint.commit import SaveError, gather, pack, publish
from harness.checkpoint.manifest import Place
from harness.checkpoint.messages import Channel, SilenceError
from harness.checkpoint.share import Report, write
from harness.checkpoint.store import Store
from harness.checkpoint.tell import Spokesman, said, warn
from harness.checkpoint.upkeep import discard, make_room, prune
from harness.checkpoint.writer import Flight, Verdict, why
from harness.events import SaveCommitted, Tier

_FAILED = "the save had failed already"


class Alone:
    """One rank's part of it; see `Carrier`."""

    def __init__(
        self,
        store: Store,
        channel: Channel,
        rank: int,
        world_size: int,
        spokesman: Spokesman,
        fingerprint: Mapping[str, str],
        keep: int,
        deadline_s: float,
    ) -> None:
        self._store = store
        self._channel = channel
        self._rank = rank
        self._world_size = world_size
        self._spokesman = spokesman
        self._fingerprint = fingerprint
        self._keep = keep
        self._deadline_s = deadline_s
        self._deciding = threading.Lock()
        self._saves: list[int] = []

    def carry(self, flight: Flight) -> Verdict:
        """See `Carrier`."""
        if self._rank == 0:
            return self._lead(flight)
        report = self._written(flight)
        self._channel.append(f"{flight.number}/reports", pack(report))
        within_s = 2 * self._deadline_s  # rank 0 may wait one for us, and then has files to write
        _, message = self._channel.hear(f"{flight.number}/verdict", within_s=within_s)
        return msgspec.json.decode(message, type=Verdict)

    def give_up(self, flight: Flight, reason: str) -> None:
        """See `Carrier`."""
        self._tell_failure(flight, reason, unless_committing=True)

    def excuse(self, number: int, place: Place, failure: str) -> None:  # noqa: ARG002
        """See `Carrier`."""
        self._channel.append(f"{number}/reports", pack(Report(self._rank, failure)))

    def absent_s(self) -> float:
        """See `Carrier`."""
        return 0.0

    def close(self) -> None:
        """See `Carrier`."""
        if self._rank == 0:
            self._forget()

    def _written(self, flight: Flight) -> Report:
        """Write this rank's share; a failure is a report too."""
        try:
            if flight.share is None or flight.memory is None:
                return Report(self._rank, flight.failure)
            if self._rank == 0:
                self._store.begin(flight.place)
                flight.begun = True
                self._channel.post(f"{flight.number}/begun", b"")
            else:
                self._await_begin(flight)
            go_on = partial(self._check_undecided, flight)
            return write(flight.share, flight.memory.view, flight.place, self._store, go_on)
        except BaseException as error:  # noqa: BLE001  # some checkpoint errors are no `Exception`
            return Report(self._rank, why(error))

    def _await_begin(self, flight: Flight) -> None:
        begun, verdict = f"{flight.number}/begun", f"{flight.number}/verdict"
        key, _ = self._channel.hear(verdict, begun, within_s=self._deadline_s)
        if key == verdict:
            raise SaveError(_FAILED)

    def _check_undecided(self, flight: Flight) -> None:
        if self._channel.was_said(f"{flight.number}/verdict"):
            raise SaveError(_FAILED)

    # ── rank 0 ──────────────────────────────────────────────────────────────────────────────

    def _lead(self, flight: Flight) -> Verdict:
        verdict = self._concluded(flight)
        self._announce(flight, verdict)
        if not verdict.committed and flight.begun:
            self._await_writers(flight)
            discard(self._store, flight.place)
            make_room(self._store, self._keep, verdict.reason, self._spokesman.tell)
        return verdict

    def _announce(self, flight: Flight, verdict: Verdict) -> None:
        """Tell the other ranks, those that still write above all."""
        try:
            if verdict.committed:
                self._forget()
            self._saves.append(flight.number)
            self._channel.post(f"{flight.number}/verdict", msgspec.json.encode(verdict))
        except Exception as error:  # noqa: BLE001  # durable is durable, whoever hears of it
            warn(f"the other ranks cannot be told of {flight.place.name}: {said(error)}")

    def _await_writers(self, flight: Flight) -> None:
        """Wait until no rank writes any more, or it would come back after what is deleted.

        One that is stuck gets as long as a call to the storage may take.
        """
        until_s = time.monotonic() + min(self._deadline_s, self._store.timeout_s)
        with suppress(SilenceError):
            for place in range(1, self._world_size):
                left_s = until_s - time.monotonic()
                self._channel.hear(f"{flight.number}/reports/{place}", within_s=left_s)

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
            self._tell_failure(flight, why(error))
            return Verdict(False, why(error))
        self._spokesman.tell(SaveCommitted(flight.place.step, Tier.STORAGE, size))
        prune(self._store, self._keep, self._spokesman.tell)
        return Verdict(True)

    def _may_commit(self, flight: Flight) -> None:
        with self._deciding:
            if flight.told:
                raise SaveError("it was given up")
            flight.committing = True

    def _tell_failure(
        self, flight: Flight, reason: str, *, unless_committing: bool = False
    ) -> None:
        with self._deciding:
            if flight.told or (unless_committing and flight.committing):
                return
            flight.told = True
        self._spokesman.fail(flight.place.step, reason)

    def _forget(self) -> None:
        """Delete the messages on saves that every rank has heard of."""
        for number in self._saves:
            self._channel.forget([f"{number}/begun", f"{number}/verdict"])
            self._channel.forget_list(f"{number}/reports", self._world_size - 1)
        self._saves.clear()
