"""What a rank and its node's saver say to each other, and how it gets there.

Frames over an abstract unix socket; the memory of a copy goes along as a descriptor. Each end asks the
kernel who the other is: whoever listens at the name must be the same user.
"""

import os
import select
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from harness.checkpoint.manifest import Place
from harness.checkpoint.share import Share

_LENGTH = struct.Struct("<Q")
_CREDENTIALS = struct.Struct("3i")
_LONGEST_BYTES = 1 << 30
_BACKLOG = 256


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Who this rank is, once for each connection."""

    run_id: str
    attempt: int
    rank: int
    world_size: int
    keep: int
    deadline_s: float
    fingerprint: Mapping[str, str]
    keeps: bool = False
    """Its memories are to be held after it has gone."""


class Handed(msgspec.Struct, frozen=True, tag=True):
    """A share that was copied, or why there is none."""

    number: int
    """Counts the questions of the attempt, so it names one save on all ranks."""
    place: Place
    share: Share | None
    failure: str | None = None
    slot: int = 0
    """Which of the rank's memories it lies in; that comes along when it has not before."""


class Copied(msgspec.Struct, frozen=True, tag=True):
    """A state lies in one of the rank's memories; which one, its label says."""

    slot: int
    fresh: bool = True
    """It was copied now; another saver may have had it before otherwise."""


class Keeps(msgspec.Struct, frozen=True, tag=True):
    """The only ones of the rank's memories that are held from here on."""

    slots: Sequence[int]


class Asked(msgspec.Struct, frozen=True, tag=True):
    """Whoever looks for states in memory begins with this."""

    run_id: str
    rank: int | None
    """Whose; of all ranks if None."""


class Looking(msgspec.Struct, frozen=True, tag=True):
    """Said at once to who asked: what is held may have to be sealed first, which takes a while."""


class Lent(msgspec.Struct, frozen=True, tag=True):
    """One of the memories that were asked for; it comes along."""

    rank: int
    slot: int
    busy: bool
    """A save is being written out of it: it may be read and not written to."""


class Enough(msgspec.Struct, frozen=True, tag=True):
    """There are no more."""


class Relieved(msgspec.Struct, frozen=True, tag=True):
    """Another saver holds all that was lent, and this one may go."""


class GivenUp(msgspec.Struct, frozen=True, tag=True):
    """Rank 0 does not want the save any more."""

    number: int
    reason: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The saver's answer to every rank of a save."""

    number: int
    committed: bool
    reason: str = ""


Message = (
    Hello | Handed | Copied | Keeps | GivenUp | Ended | Asked | Looking | Lent | Enough | Relieved
)


class Line:
    """One connection. Sending is safe from several threads, receiving is one thread's."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        """Raises `PermissionError` if another user is at the other end."""
        connection.settimeout(timeout_s)
        self._socket = connection
        self._sending = threading.Lock()
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.peer_pid, user, _ = _CREDENTIALS.unpack(raw)
        if user != os.getuid():
            connection.close()
            raise PermissionError(f"user {user} is at the other end, and this is {os.getuid()}")

    @classmethod
    def to(cls, address: str, timeout_s: float) -> "Line":
        """Connect to the saver at `address`. Raises `OSError` where none listens."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            connection.connect("\0" + address)
        except BaseException:
            connection.close()
            raise
        return cls(connection, timeout_s)

    def send(self, message: Message, descriptor: int | None = None) -> None:
        """Send, with a descriptor where given. Raises `OSError`."""
        body = msgspec.msgpack.encode(message)
        frame = _LENGTH.pack(len(body))
        with self._sending:
            if descriptor is None:
                self._socket.sendall(frame)
            else:  # it travels with the first byte
                sent = socket.send_fds(self._socket, [frame], [descriptor])
                self._socket.sendall(frame[sent:])
            self._socket.sendall(body)

    def receive(self) -> tuple[Message, int | None]:
        """The next message, and the descriptor that came with it. Raises `EOFError` or `OSError`."""
        frame, descriptors, _, _ = socket.recv_fds(
            self._socket, _LENGTH.size, 1, socket.MSG_CMSG_CLOEXEC
        )
        descriptor = descriptors[0] if descriptors else None
        try:
            frame += self._exactly(_LENGTH.size - len(frame)) if frame else b""
            if not frame:
                raise EOFError("the other end has closed")
            (length,) = _LENGTH.unpack(frame)
            if length > _LONGEST_BYTES:
                raise OSError(f"a message of {length} bytes is none of ours")
            return msgspec.msgpack.decode(self._exactly(length), type=Message), descriptor
        except msgspec.MsgspecError as error:
            _drop(descriptor)
            raise OSError(f"a message that is none of ours: {error}") from error
        except BaseException:
            _drop(descriptor)
            raise

    def fileno(self) -> int:
        """The socket's descriptor, readable when there is something to receive."""
        return self._socket.fileno()

    @property
    def is_dead(self) -> bool:
        """True once the other end has closed, whatever of it is still to be read."""
        watch = select.poll()
        watch.register(self._socket, 0)
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in watch.poll(0))

    def arrives(self, timeout_s: float) -> bool:
        """Wait for something to receive, if only the end."""
        watch = select.poll()
        watch.register(self._socket, select.POLLIN)
        return bool(watch.poll(timeout_s * 1000))

    def close(self) -> None:
        """End the connection, though a forked child may hold a copy of it."""
        with suppress(OSError):  # it has ended
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        body = bytearray(count)
        view = memoryview(body)
        while view:
            got = self._socket.recv_into(view)
            if not got:
                raise EOFError("the other end has closed in the middle of a message")
            view = view[got:]
        return bytes(body)


@dataclass(frozen=True, slots=True)
class Member:
    """A rank that is connected."""

    line: Line
    pidfd: int

    @property
    def lives(self) -> bool:
        """True while its process does, whatever its connection looks like."""
        watch = select.poll()
        watch.register(self.pidfd, select.POLLIN)
        return not watch.poll(0)


def listener(address: str) -> socket.socket:
    """Listen at `address`. Raises `OSError` if someone else does."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind("\0" + address)
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _drop(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
