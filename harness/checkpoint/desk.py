"""Where ranks hand over their shares: admits connections, and keeps the attempts apart."""

import os
import select
import socket
import threading
import time
from collections.abc import Callable

from harness.checkpoint import slot
from harness.checkpoint.crew import Crew
from harness.checkpoint.memory import seen
from harness.checkpoint.rescue import rescue
from harness.checkpoint.shelf import Shelf
from harness.checkpoint.store import Store
from harness.checkpoint.tell import said, warn
from harness.checkpoint.upkeep import sweep
from harness.checkpoint.wire import (
    Asked,
    Copied,
    Enough,
    GivenUp,
    Handed,
    Hello,
    Keeps,
    Lent,
    Line,
    Looking,
    Member,
    Relieved,
)
from harness.events import Event

_FRAME_TIMEOUT_S = 30.0
"""How long half a message may take to become whole."""
_ABANDON_S = 3.0
_HEARD_WITHIN_S = 2.0
"""What a rank said before it died is read within milliseconds."""
_SEALED_WITHIN_S = 30.0


class Desk:
    """All attempts that this saver has heard of and is not done with."""

    def __init__(
        self,
        run_id: str,
        open_store: Callable[[], Store],
        tell: Callable[[Event, int], None],
    ) -> None:
        """`open_store` opens the run's storage, `tell` records an event of an attempt."""
        self._run_id = run_id
        self._open_store = open_store
        self._tell = tell
        self._lock = threading.Lock()
        self._crews: dict[int, Crew] = {}
        self.shelf = Shelf(tell)
        self.relieved = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable once another saver has taken over what this one holds."""

    def admit(self, connection: socket.socket) -> None:
        """Serve a connection, in a thread of its own."""
        threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def leave(self, within_s: float) -> bool:
        """Finish what is complete, abandon the rest; False if some of it would not end."""
        until_s = time.monotonic() + within_s
        crews = self._all()
        for crew in crews:
            crew.stop("the saver was asked to leave", only_incomplete=True)
        for crew in crews:
            crew.wait(max(0.0, until_s - time.monotonic()))
            crew.stop(f"it was not durable {within_s:g} s after the saver was asked to leave")
        return all(crew.wait(_ABANDON_S) for crew in crews)

    def rescue(self) -> None:
        """Commit what is newer in memory than in the storage, where nobody else will hold it."""
        held = [slot.kept(held.view) for _, held in self.shelf.lend(None, _SEALED_WITHIN_S)]
        found = [kept for kept in held if kept is not None and kept.label.run_id == self._run_id]
        rescue(found, self._open_store, self._tell)

    def _serve(self, connection: socket.socket) -> None:
        try:
            line = Line(connection, _FRAME_TIMEOUT_S)
            pidfd = os.pidfd_open(line.peer_pid)
        except OSError as error:
            warn(f"the saver turned a connection away: {said(error)}")
            return
        try:
            self._converse(line, Member(line, pidfd))
        except EOFError:
            pass  # it ended as it should, or with its rank
        except (OSError, ValueError) as error:
            warn(f"the saver ended a connection: {said(error)}")
        finally:
            line.close()
            os.close(pidfd)

    def _converse(self, line: Line, member: Member) -> None:
        """Raises `EOFError` in the end, and `OSError` or `ValueError` for what is none of ours."""
        hello, _ = line.receive()
        if not isinstance(hello, Hello | Asked) or hello.run_id != self._run_id:
            raise ValueError(f"{hello!r:.200} is not how a rank of run {self._run_id!r} begins")
        if isinstance(hello, Asked):
            self._lend(line, hello)
            return
        crew = self._joined(hello, member)
        if not hello.keeps:  # nobody will ask for what earlier launches left
            self.shelf.clear()
        try:
            self._attend(line, member, hello, crew)
        finally:
            crew.part(hello.rank, member)
            self._forget_what_is_over()

    def _attend(self, line: Line, member: Member, hello: Hello, crew: Crew) -> None:
        """Take what a rank says until it has gone."""
        memories: dict[int, memoryview] = {}
        while _arrives(line, member.pidfd):
            message, descriptor = line.receive()
            if descriptor is not None and isinstance(message, Handed | Copied):
                memories[message.slot] = self._held(hello, message.slot, descriptor)
            match message:
                case Handed():
                    crew.take(hello.rank, message, memories.get(message.slot, memoryview(b"")))
                case Copied():
                    self.shelf.note(hello.rank, message.slot, fresh=message.fresh)
                case Keeps():
                    self.shelf.keep(hello.rank, message.slots)
                case GivenUp():
                    crew.give_up(message.number, message.reason)
                case _:
                    raise ValueError(f"{type(message).__name__} is not for a rank to say here")

    def _held(self, hello: Hello, number: int, descriptor: int) -> memoryview:
        """A rank's memory, held after its end if that is what it is for."""
        if not hello.keeps:
            return seen(descriptor)
        return self.shelf.put(hello.rank, number, descriptor, hello.attempt)

    def _lend(self, line: Line, asked: Asked) -> None:
        """Give what is held of the memories that are asked for."""
        line.send(Looking())
        crews = self._all()
        for crew in crews:
            crew.hear_out(_HEARD_WITHIN_S)
        for (rank, number), held in self.shelf.lend(asked.rank, _SEALED_WITHIN_S):
            busy = held.busy or any(crew.writes_from(rank, number) for crew in crews)
            line.send(Lent(rank, number, busy), held.descriptor)
        line.send(Enough())
        message, _ = line.receive()
        if isinstance(message, Relieved):
            os.eventfd_write(self.relieved, 1)

    def _joined(self, hello: Hello, member: Member) -> Crew:
        """The attempt that a rank now belongs to. A newer one takes over from all others."""
        with self._lock:
            crew = self._crews.get(hello.attempt)
            fresh = crew is None
            if crew is None:
                crew = self._crews[hello.attempt] = Crew(hello, self._open_store, self._tell)
            crew.join(hello, member)
            older = [one for number, one in self._crews.items() if number < hello.attempt]
        if fresh:
            for one in older:
                mine, theirs = hello.attempt, one.hello.attempt
                one.stop(f"attempt {mine} has taken over from attempt {theirs}")
            threading.Thread(target=_sweep_behind, args=(crew, older), daemon=True).start()
        return crew

    def _forget_what_is_over(self) -> None:
        with self._lock:
            self._crews = {n: crew for n, crew in self._crews.items() if not crew.is_over}

    def _all(self) -> list[Crew]:
        with self._lock:
            return list(self._crews.values())


def _sweep_behind(crew: Crew, older: list[Crew]) -> None:
    """Delete what older attempts left, once those of them that this saver served have ended."""
    for one in older:
        one.wait(one.hello.deadline_s)
    try:
        store = crew.store()
    except Exception as error:  # noqa: BLE001  # the first save will say it too
        warn(f"the storage cannot be opened: {said(error)}")
        return
    sweep(store, crew.hello.attempt)


def _arrives(line: Line, pidfd: int) -> bool:
    """Wait for a message; False once the rank's process has ended and all that it said is read.

    Its connection alone does not tell: processes that it forked may hold it open.
    """
    watch = select.poll()
    watch.register(line, select.POLLIN)
    watch.register(pidfd, select.POLLIN)
    watch.poll()
    return line.arrives(0)
