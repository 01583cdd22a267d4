"""An object as a file: read by ranges, a few of them on their way at once, given in order.

Each range is a request of its own, so one that fails does not cost the others.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Self

from harness.checkpoint.ahead import begin

_RANGE_BYTES = 8 << 20
_RANGES_AHEAD = 4


class Ranges:
    """Reads an object of `size` bytes; `fetch` gives those from a begin to an end."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        starts = range(0, size, _RANGE_BYTES)
        self._ranges = iter([(start, min(start + _RANGE_BYTES, size)) for start in starts])
        self._fetch = fetch
        self._coming: deque[Future[bytes]] = deque()
        self._at_hand = memoryview(b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._ranges = iter(())

    def readinto(self, view: memoryview) -> int:
        """Fill `view` as far as the range at hand goes; 0 at the end."""
        if not self._at_hand:
            self._ask()
            if not self._coming:
                return 0
            self._at_hand = memoryview(self._coming.popleft().result())
        count = min(len(view), len(self._at_hand))
        view[:count] = self._at_hand[:count]
        self._at_hand = self._at_hand[count:]
        return count

    def read(self) -> bytes:
        """All that is left."""
        data = bytearray(_RANGE_BYTES)
        parts: list[bytes] = []
        while count := self.readinto(memoryview(data)):
            parts.append(bytes(data[:count]))
        return b"".join(parts)

    def _ask(self) -> None:
        """Have enough ranges on their way."""
        while len(self._coming) < _RANGES_AHEAD and (span := next(self._ranges, None)) is not None:
            self._coming.append(begin(partial(self._fetch, *span)))
