"""Carries saves by the node's saver: a rank's end of the connection.

A saver that has gone fails the save in flight and nothing else; the next one asks for it again.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from harness.checkpoint.manifest import Place
from harness.checkpoint.memory import Memory
from harness.checkpoint.store import Store
from harness.checkpoint.tell import Spokesman, said
from harness.checkpoint.wire import Copied, Ended, GivenUp, Handed, Hello, Keeps, Line, Message
from harness.checkpoint.writer import Flight, Verdict

_SEND_TIMEOUT_S = 10.0
_LOOK_S = 1.0


class Handover:
    """One rank's connection to the saver at `address`; see `Carrier`."""

    def __init__(self, address: str, hello: Hello, store: Store, spokesman: Spokesman) -> None:
        self._address = address
        self._hello = hello
        self._store = store
        self._spokesman = spokesman
        self._connecting = threading.RLock()
        self._line: Line | None = None
        self._lending = threading.Lock()
        self._lent: dict[int, Memory] = {}
        """The memories that the saver at the other end has, by slot."""
        self._absent_since_s = time.monotonic()

    def carry(self, flight: Flight) -> Verdict:
        """See `Carrier`."""
        line: Line | None = None
        try:
            line = self._connected()
            self._hand(line, flight)
            return self._heard(line, flight)
        except (OSError, EOFError, ValueError) as error:  # the last of a line that is closed
            self._part(line)
            # One that has lost us alone would go on, and commit what lies in memory that we use again.
            with suppress(OSError):
                self._connected()
                self.give_up(flight, said(error))
            return self._lost(flight, error)

    def give_up(self, flight: Flight, reason: str) -> None:
        """See `Carrier`. Where the saver has gone, `carry` tells of that."""
        self._say(GivenUp(flight.number, reason))

    def excuse(self, number: int, place: Place, failure: str) -> None:
        """See `Carrier`. A saver that has gone does not wait for us."""
        self._say(Handed(number, place, None, failure))

    def keep(self, slots: Mapping[int, Memory], copied: int) -> None:
        """Have the saver hold on to all `slots`, the last of which was `copied` to; -1 if none was.

        Raises `OSError`.
        """
        line = self._connected()
        for slot, memory in slots.items():
            if slot == copied or self._lent.get(slot) is not memory:
                self._send(line, Copied(slot, slot == copied), slot, memory)

    def keep_only(self, slots: Sequence[int]) -> None:
        """Have the saver let go of all but `slots`. Raises `OSError`."""
        self._connected().send(Keeps(slots))

    def absent_s(self) -> float:
        """See `Carrier`."""
        try:
            self._connected()
        except OSError:
            return max(time.monotonic() - self._absent_since_s, 1e-9)
        return 0.0

    def close(self) -> None:
        """See `Carrier`."""
        self._part(self._line)

    def _say(self, message: GivenUp | Handed) -> None:
        line = self._line
        if line is not None:
            with suppress(OSError):
                line.send(message)

    def _connected(self) -> Line:
        """The connection, made anew if need be. Raises `OSError`."""
        with self._connecting:
            if self._line is not None and self._line.is_dead:
                self._part(self._line)
            if self._line is None:
                line = Line.to(self._address, _SEND_TIMEOUT_S)
                try:
                    line.send(self._hello)
                except BaseException:
                    line.close()
                    raise
                self._line = line
            return self._line

    def _part(self, line: Line | None) -> None:
        with self._connecting:
            if line is None or line is not self._line:
                return
            line.close()
            self._absent_since_s = time.monotonic()
            self._line = None
            self._lent.clear()

    def _hand(self, line: Line, flight: Flight) -> None:
        message = Handed(flight.number, flight.place, flight.share, flight.failure, flight.slot)
        self._send(line, message, flight.slot, flight.memory)

    def _send(self, line: Line, message: Message, slot: int, memory: Memory | None) -> None:
        """Send what is said of a slot; with its memory, where this saver has not got that yet."""
        with self._lending:
            fresh = memory is not None and self._lent.get(slot) is not memory
            line.send(message, memory.descriptor if memory is not None and fresh else None)
            if memory is not None and line is self._line:
                self._lent[slot] = memory

    def _heard(self, line: Line, flight: Flight) -> Verdict:
        """Wait for the saver's word on the save, but not for ever. Raises `OSError`, `EOFError`."""
        until_s = flight.since_s + 2 * self._hello.deadline_s
        while time.monotonic() < until_s:
            if not line.arrives(_LOOK_S):
                continue
            message, _ = line.receive()
            if isinstance(message, Ended) and message.number == flight.number:
                if not message.committed:
                    self._spokesman.complain(flight.place.step, message.reason)
                return Verdict(message.committed, message.reason)
        raise TimeoutError(f"the saver has said nothing for {2 * self._hello.deadline_s:g} s")

    def _lost(self, flight: Flight, error: Exception) -> Verdict:
        """What became of a save whose saver has gone: it may have committed as its last act."""
        if self._hello.rank == 0 and self._is_committed(flight.place):
            return Verdict(True)
        reason = f"the saver has gone ({said(error)})"
        self._spokesman.fail(flight.place.step, reason)
        return Verdict(False, reason, lost=True)

    def _is_committed(self, place: Place) -> bool:
        try:
            return self._store.is_committed(place)
        except Exception:  # noqa: BLE001  # then it is not known to be
            return False
