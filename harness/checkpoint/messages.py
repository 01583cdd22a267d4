"""How the ranks of an attempt talk about checkpoints: short messages by key, never a collective.

A message is heard by asking for it again and again. torch's own blocking wait would hold the client
that others use, could not be interrupted by a signal, and prints a warning at each time-out.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

_SHORTEST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.02


class SilenceError(RuntimeError):
    """A message that should have come did not."""


class Messages(Protocol):
    """What is used of a `torch.distributed.Store`; any kind of it will do."""

    def set(self, key: str, value: Any, /) -> object:
        """Say something."""

    def get(self, key: str, /) -> bytes:
        """What was said."""

    def add(self, key: str, amount: int, /) -> int:
        """Count, from any number of ranks at once."""

    def check(self, keys: list[str], /) -> bool:
        """True if something was said on all of `keys`; does not wait."""

    def delete_key(self, key: str, /) -> bool:
        """Forget it."""


class Channel:
    """The messages on one topic. Safe to use from several threads: no call holds the client long."""

    def __init__(self, messages: Messages, topic: str) -> None:
        self._messages = messages
        self._topic = topic

    def post(self, key: str, message: bytes) -> None:
        """Say something; the last word on a key stands."""
        self._messages.set(self._topic + key, message)

    def append(self, key: str, message: bytes) -> int:
        """Say something as the next in a list that all ranks write; the first is number 1."""
        number = self._messages.add(f"{self._topic}{key}/count", 1)
        self.post(f"{key}/{number}", message)
        return number

    def was_said(self, key: str) -> bool:
        """True if there is a message; never waits."""
        return bool(self._messages.check([self._topic + key]))

    def hear(
        self, *keys: str, within_s: float, meanwhile: Callable[[], None] | None = None
    ) -> tuple[str, bytes]:
        """The first of `keys` on which something was said, and what; it stays there to be read.

        Raises `SilenceError` after `within_s` seconds. `meanwhile` is called between two looks.
        """
        until_s = time.monotonic() + within_s
        pause_s = _SHORTEST_PAUSE_S
        while True:
            for key in keys:
                if self.was_said(key):
                    return key, bytes(self._messages.get(self._topic + key))
            if time.monotonic() >= until_s:
                raise SilenceError(f"no word on {' or '.join(keys)} within {within_s:g} s")
            if meanwhile is not None:
                meanwhile()
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)

    def forget(self, keys: Iterable[str]) -> None:
        """Delete messages; those that are not there are no concern."""
        for key in keys:
            self._messages.delete_key(self._topic + key)

    def forget_list(self, key: str, length: int) -> None:
        """Delete a list that `append` made."""
        self.forget([f"{key}/count", *(f"{key}/{number}" for number in range(1, length + 1))])
