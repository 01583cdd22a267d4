"""An attempt's number, asked for in a thread of its own: a storage may take minutes to answer."""

import errno
import os
import threading
from collections.abc import Callable


class Claim:
    """One claim under way; `fileno` becomes readable once it is over.

    One that is left alone may still take a number: then no attempt has it, and the next one is higher.
    """

    def __init__(self, act: Callable[[], int]) -> None:
        self._act = act
        self._number: int | None = None
        self._error: BaseException | None = None
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="claim", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no process is left for it, as for the ranks before
            self._error = OSError(errno.EAGAIN, str(error))
            os.close(self._writer)

    def fileno(self) -> int:
        """Readable once it is over."""
        return self._reader

    @property
    def is_over(self) -> bool:
        """True once it has a number, or has failed."""
        return self._number is not None or self._error is not None

    def number(self) -> int:
        """What was claimed; raises what came instead."""
        if self._error is not None:
            raise self._error
        assert self._number is not None, "it is over"
        return self._number

    def leave(self) -> None:
        """Wait for it no longer."""
        os.close(self._reader)

    def _run(self) -> None:
        try:
            self._number = self._act()
        except BaseException as error:  # noqa: BLE001  # raised again where it is waited for
            self._error = error
        # Closed here alone: by then another file could have the number of a descriptor left behind.
        os.close(self._writer)
