"""How a rank hears that it is to leave: SIGTERM asks for a drain of the whole job, and ends nobody.

A scheduler may signal every process of a job, or one. The main thread may be in a collective then, so
what C's handler writes into a pipe is read by whoever waits here. A script that has a use for SIGTERM
of its own keeps it.
"""

import os
import select
import signal
import threading
from contextlib import suppress
from types import FrameType

_CALL = bytes([0])
"""Wakes whoever waits, and is no signal."""


class Notice:
    """From here on SIGTERM is noticed instead of obeyed, in this process and none of its children."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        in_main = threading.current_thread() is threading.main_thread()
        self._listens = in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if self._listens:
            signal.signal(signal.SIGTERM, self._hear)
            signal.siginterrupt(signal.SIGTERM, False)  # no call of code in C is cut short
            before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            if before != -1:  # somebody's event loop: then the main thread's handler has to do
                signal.set_wakeup_fd(before)
            self._mask = threading.local()
            # What is sent to a child before it ignores us is to wait until it does.
            os.register_at_fork(
                before=self._hold, after_in_parent=self._let_go, after_in_child=self._begin_child
            )

    def wait(self, timeout_s: float) -> bool:
        """True if SIGTERM came, perhaps long ago; False after `timeout_s`, or when called."""
        if not select.select([self._reader], [], [], timeout_s)[0]:
            return False
        with suppress(BlockingIOError):
            return signal.SIGTERM in os.read(self._reader, 1024)
        return False

    def call(self) -> None:
        """Have whoever waits look up at once."""
        with suppress(BlockingIOError):
            os.write(self._writer, _CALL)

    def ignore(self) -> None:
        """From here on SIGTERM ends this process again."""
        if self._listens and signal.getsignal(signal.SIGTERM) == self._hear:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if (other := signal.set_wakeup_fd(-1)) != self._writer:
                signal.set_wakeup_fd(other)
        self._listens = False

    def _hold(self) -> None:
        self._mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _let_go(self) -> None:
        if signal.SIGTERM not in self._mask.before:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _begin_child(self) -> None:
        self.ignore()
        self._let_go()

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        with suppress(BlockingIOError):
            os.write(self._writer, bytes([number]))
