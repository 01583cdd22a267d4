"""How storage misbehaves: which calls a rule is about, and which of those it spoils. Pure.

A rule counts the calls that it is about, over all processes of the run. Each draw is a function of the
seed, the rule's own words and that count, so another rule shifts nobody's draws.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import assert_never

from faultinject.draws import share


class Operation(StrEnum):
    """What is asked of the storage."""

    CREATE = "create"
    """A small file that must not be there yet: claims, lineage, commits."""
    DELETE = "delete"
    LIST = "list"
    LOOK = "look"
    """Whether a file is there, and how large."""
    READ = "read"
    WRITE = "write"


class Kind(StrEnum):
    """How a call goes wrong."""

    BIT_FLIP = "bit_flip"
    """One bit is another one on its way, and nobody says so."""
    EIO = "eio"
    """The call fails, in the middle of a file if it is about one."""
    ENOSPC = "enospc"
    """No byte is taken beyond so many."""
    HANG = "hang"
    """No answer comes."""
    LATENCY = "latency"
    """The answer comes late."""
    SHORT_WRITE = "short_write"
    """Only the first part of a file arrives, and nobody says so."""
    STALE = "stale"
    """A listing is one of some time ago."""
    THROTTLE = "throttle"
    """The call fails as an object store's 503 does."""
    TRUNCATE = "truncate"
    """A file seems to end half way."""


_ALL = tuple(Operation)
SUITS: Mapping[Kind, tuple[Operation, ...]] = {
    Kind.BIT_FLIP: (Operation.CREATE, Operation.READ, Operation.WRITE),
    Kind.EIO: _ALL,
    Kind.ENOSPC: (Operation.CREATE, Operation.WRITE),
    Kind.HANG: _ALL,
    Kind.LATENCY: _ALL,
    Kind.SHORT_WRITE: (Operation.WRITE,),
    Kind.STALE: (Operation.LIST,),
    Kind.THROTTLE: _ALL,
    Kind.TRUNCATE: (Operation.READ,),
}
"""What each kind can happen to."""


@dataclass(frozen=True, slots=True)
class Nth:
    """At that call alone; the first is 1."""

    number: int

    def __str__(self) -> str:
        return f"call {self.number}"


@dataclass(frozen=True, slots=True)
class From:
    """At that call and at each that follows."""

    number: int = 1

    def __str__(self) -> str:
        return "every call" if self.number == 1 else f"every call from number {self.number} on"


@dataclass(frozen=True, slots=True)
class Chance:
    """At each call with this probability."""

    probability: float

    def __str__(self) -> str:
        return f"each call with probability {self.probability:g}"


When = Nth | From | Chance


@dataclass(frozen=True, slots=True)
class Rule:
    """One way in which the storage misbehaves."""

    kind: Kind
    operations: tuple[Operation, ...]
    name: str = "*"
    """Which names it is about, below the root of the storage; `*` stands for slashes too."""
    when: When = From()
    most: int | None = None
    """How often it happens at most in a run; None is without end."""
    after_bytes: int = 0
    """`enospc`: how many bytes are taken before, over all files that it is about."""
    seconds: float = 0.0
    """`latency`, `hang`: how long; `stale`: how old a listing is."""

    def is_about(self, operation: Operation, name: str) -> bool:
        """Whether it counts such a call."""
        return operation in self.operations and fnmatchcase(name, self.name)

    def is_due(self, seed: int, call: int, acted: int) -> bool:
        """Whether it spoils call number `call`, when it has spoilt `acted` of those before."""
        if self.is_spent(acted):
            return False
        match self.when:
            case Nth(number):
                return call == number
            case From(number):
                return call >= number
            case Chance(probability):
                return share(seed, f"storage {self.words}", call) < probability
            case _:
                assert_never(self.when)

    def is_spent(self, acted: int) -> bool:
        """Whether it has happened as often as it may, when it has spoilt `acted` calls."""
        return self.most is not None and acted >= self.most

    @property
    def words(self) -> str:
        """What it is about; no two rules of a plan have the same."""
        return f"{self.kind} of {', '.join(self.operations)} {self.name}"

    def __str__(self) -> str:
        most = "" if self.most is None else f", {self.most} times at most"
        size = f" after {self.after_bytes} bytes" if self.kind is Kind.ENOSPC else ""
        lasts = f" of {self.seconds:g} s" if self.seconds else ""
        return (
            f"{self.kind}{lasts}{size}: {', '.join(self.operations)} {self.name}, {self.when}{most}"
        )
