"""Waits for whatever happens to the launcher: a death, a signal, or the end of a time.

Everything is an open descriptor, so nothing is polled; signals arrive through a pipe.
"""

import os
import selectors
import signal
from collections.abc import Hashable, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn, Protocol, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class HasDescriptor(Protocol):
    """What can be waited for."""

    def fileno(self) -> int:
        """The descriptor that becomes readable."""


class Watch:
    """Owns the launcher's signals from entering to leaving; use it in the main thread."""

    afterwards: int | None = None
    """Exit status of a process that is told to end once nothing is waited for; None: as it was before."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: Mapping[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._selector.register(self._reader, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._writer)
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        for number, handler in self._before.items():
            if handler is not signal.SIG_IGN:  # `nohup` had it ignored
                signal.signal(number, _only_wake)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            settled = self.afterwards is not None and handler is not signal.SIG_IGN
            signal.signal(number, self._end if settled else handler)
        signal.set_wakeup_fd(-1)
        self._selector.close()
        os.close(self._reader)
        os.close(self._writer)

    def add(self, descriptor: int | HasDescriptor, name: Hashable) -> None:
        """Wait for `descriptor` too, and call it `name`."""
        self._selector.register(descriptor, selectors.EVENT_READ, name)

    def remove(self, descriptor: int | HasDescriptor) -> None:
        """Do not wait for `descriptor` any more."""
        with suppress(KeyError):
            self._selector.unregister(descriptor)

    def wait(self, timeout_s: float | None) -> tuple[set[Hashable], list[int]]:
        """Names of what is ready, and signals that came; both empty after `timeout_s`."""
        ready = {key.data for key, _ in self._selector.select(timeout_s)}
        ready.discard(None)
        return ready, self._signals()

    def _end(self, _number: int, _frame: FrameType | None) -> NoReturn:
        os._exit(self.afterwards or 0)

    def _signals(self) -> list[int]:
        try:
            numbers = os.read(self._reader, 1024)
        except BlockingIOError:
            return []
        return [number for number in numbers if number in SIGNALS]


def _only_wake(_number: int, _frame: FrameType | None) -> None:
    """The pipe says it all."""


def ignore() -> None:
    """Let no signal change how this process ends: not even the interpreter's end, which gives them back."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
