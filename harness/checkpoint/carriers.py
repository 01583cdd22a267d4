"""Which carrier an attempt's saves have: the node's saver for as long as there is one, and then the ranks themselves.

Rank 0 says for all when they turn; they never turn back within an attempt.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Self

from harness.checkpoint.alone import Alone
from harness.checkpoint.handover import Handover
from harness.checkpoint.manifest import Place
from harness.checkpoint.memory import Memory
from harness.checkpoint.messages import Channel
from harness.checkpoint.store import Store
from harness.checkpoint.tell import Spokesman
from harness.checkpoint.upkeep import sweep_own
from harness.checkpoint.wire import Hello
from harness.checkpoint.writer import Carrier, Flight, Verdict


class Carriers:
    """One rank's part of it; see `Carrier`."""

    def __init__(self, saver: Handover | None, alone: Alone, store: Store, rank: int) -> None:
        self._alone = alone
        self._store = store
        self._rank = rank
        self._saver = saver
        self._now: Carrier = saver or alone
        self._has_turned = False
        self.apart = saver is not None
        """Another process writes."""

    @classmethod
    def of(
        cls, hello: Hello, saver: str, store: Store, channel: Channel, spokesman: Spokesman
    ) -> Self:
        """Those of the rank that says `hello`; at `saver` there is one, unless that is empty."""
        rank, world_size, found = hello.rank, hello.world_size, hello.fingerprint
        alone = Alone(
            store, channel, rank, world_size, spokesman, found, hello.keep, hello.deadline_s
        )
        return cls(Handover(saver, hello, store, spokesman) if saver else None, alone, store, rank)

    def turn(self) -> None:
        """Save within the ranks from here on: the saver does not come back."""
        former, self._now = self._now, self._alone
        self.apart, self._has_turned, self._saver = False, True, None
        former.close()

    def keep(self, slots: Mapping[int, Memory], copied: int) -> None:
        """Have the saver hold on to these memories; one that has gone is shown them next time."""
        saver = self._saver
        if saver is not None:
            with suppress(OSError):
                saver.keep(slots, copied)

    def keep_only(self, slots: Sequence[int]) -> None:
        """Have the saver let go of this rank's other memories."""
        saver = self._saver
        if saver is not None:
            with suppress(OSError):
                saver.keep_only(slots)

    def carry(self, flight: Flight) -> Verdict:
        """See `Carrier`. The first one that is ours takes away what a dead saver left half written."""
        carrier = self._now
        if carrier is self._alone and self._has_turned and self._rank == 0:
            sweep_own(self._store, flight.place)
            self._has_turned = False
        return carrier.carry(flight)

    def give_up(self, flight: Flight, reason: str) -> None:
        """See `Carrier`."""
        self._now.give_up(flight, reason)

    def excuse(self, number: int, place: Place, failure: str) -> None:
        """See `Carrier`."""
        self._now.excuse(number, place, failure)

    def absent_s(self) -> float:
        """See `Carrier`."""
        return self._now.absent_s()

    def close(self) -> None:
        """See `Carrier`."""
        self._now.close()
