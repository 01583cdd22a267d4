"""What a place for checkpoints must be able to do; local.py and remote.py are the two that can.

It is a flat map from names to bytes. A name is never seen before all of its bytes are there.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """What a listing tells of one object."""

    size_bytes: int
    written_s: float
    """When, by the clock of the storage, in seconds since 1970; 0 where it does not tell."""


class Objects(Protocol):
    """Names relative to the root of one run's storage. Every failure is an `OSError`."""

    def put(self, name: str, chunks: Iterable[memoryview], *, fresh: bool = False) -> None:
        """Make `chunks` the content of `name`, durably; of a whole failed call nothing is seen.

        Raises `FileExistsError`, having changed nothing, if `name` is to be `fresh` and is not.
        """

    def open(self, name: str) -> AbstractContextManager[Any]:
        """A file with `readinto`, read from its begin to its end. Raises `FileNotFoundError`."""

    def listing(self, under: str = "") -> Mapping[str, Entry]:
        """Every object, or every one below the folder `under`, as it is now."""

    def delete(self, name: str) -> None:
        """Take an object away. Where it is not there: nothing, or `FileNotFoundError`."""

    def sweep(self, is_dead: Callable[[str, float], bool]) -> None:
        """Take away what was begun and never got its name.

        `is_dead` is asked with the name that it was to get and its age in seconds.
        """
