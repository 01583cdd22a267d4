"""What the launcher and its fork server say to each other: orders one way, what came of them the other.

Each message is one packet of JSON, so neither side ever reads half of one.
"""

import socket

import msgspec

_LONGEST_BYTES = 1 << 20


class Order(msgspec.Struct, frozen=True, tag=True):
    """Start a process."""

    name: str
    environment: dict[str, str]
    """What to set beyond the launcher's own environment."""
    directory: str
    output: str
    """File to which standard output is appended …"""
    errors: str
    """… and standard error."""
    stacks: str = ""
    """File to which the process writes its stacks when asked."""
    arguments: tuple[str, ...] = ()


class Signal(msgspec.Struct, frozen=True, tag=True):
    """Send a signal to processes that live and catch it, or to all that live if it is `forced`."""

    number: int
    names: tuple[str, ...]
    forced: bool = False


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Kill every process below this one; answered when none is left."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A fork server that was started as a bare interpreter has imported what it could."""

    cold: str
    """Why its processes start cold; empty if they are forked from it, warm as it is now."""


class Started(msgspec.Struct, frozen=True, tag=True):
    """A process runs."""

    name: str
    pid: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The kernel gives no process."""

    name: str
    reason: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A process ended."""

    name: str
    pid: int
    status: int
    """Exit code, or the negative number of the signal that ended it."""
    at_ns: int
    """CLOCK_MONOTONIC at which it was noticed."""


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """No process below this one is left."""


Request = Order | Signal | Stop
Answer = Ready | Started | Refused | Ended | Stopped


def receive(connection: socket.socket) -> bytes:
    """The next message; empty if the other side is gone."""
    try:
        return connection.recv(_LONGEST_BYTES)
    except ConnectionResetError:
        return b""
