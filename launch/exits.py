"""What the exits of an attempt's ranks mean for the job. Decides, from facts that are handed in.

A rank's exit code alone says little: a script that ends early exits 0, and one that crashes in its
tear-down after the last durable step has still done its work. What the rank marked in its slot tells.
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from harness.events import EXIT_CODES, Outcome
from harness.slots import Mark


@dataclass(frozen=True, slots=True)
class Raised:
    """The exception that ended a rank, as its error file tells."""

    kind: str
    """Name of the exception's class; empty where the file does not say."""
    message: str
    where: str
    """`file:line` that raised it; empty where the file does not say."""
    at_ns: int | None
    """CLOCK_MONOTONIC; None where the file does not say."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How one rank ended."""

    rank: int
    status: int
    """Exit code, or the negative number of the signal that ended it."""
    at_ns: int
    """CLOCK_MONOTONIC at which it was noticed."""
    mark: Mark | None = None
    """What it said last that it was doing; None if it never joined the job."""
    step: int | None = None
    """Steps that it had finished; None if it never joined the job."""
    raised: Raised | None = None


class Manner(Enum):
    """What one rank's exit means."""

    DONE = auto()
    DRAINED = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Going:
    """Ranks are still at work, and nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The job is done."""

    warning: str = ""
    """What went wrong after that, and does not matter."""


@dataclass(frozen=True, slots=True)
class Drained:
    """Every rank saved its state and left, as asked."""

    step: int | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt is lost."""

    exits: tuple[Exit, ...]
    """Those that failed."""


Judgement = Going | Finished | Drained | Failed


def judge(exits: Mapping[int, Exit], world_size: int, *, joined: bool) -> Judgement:
    """What `exits` (by rank) mean; `joined` says that any rank of the attempt joined the job."""
    manners = {rank: manner(exit_, joined=joined) for rank, exit_ in exits.items()}
    failed = tuple(exits[rank] for rank, how in manners.items() if how is Manner.FAILED)
    if failed:
        return Failed(failed)
    if len(exits) < world_size:
        return Going()
    if Manner.DRAINED in manners.values():
        steps = [exit_.step for exit_ in exits.values() if exit_.step is not None]
        return Drained(max(steps, default=None))
    return Finished(_warning(exits))


def manner(exit_: Exit, *, joined: bool) -> Manner:
    """What one exit means; see `judge`."""
    if exit_.mark is Mark.FINISHED:
        return Manner.DONE
    if exit_.mark is Mark.DRAINED and exit_.status == EXIT_CODES[Outcome.DRAINED]:
        return Manner.DRAINED
    # A script that does not use the library is done when it says so, as under torchrun; but where
    # the others joined, a rank that left before it did leaves them waiting for ever.
    if exit_.mark is None and exit_.status == 0 and not joined:
        return Manner.DONE
    return Manner.FAILED


def _warning(exits: Mapping[int, Exit]) -> str:
    crashed = [exit_ for _, exit_ in sorted(exits.items()) if exit_.status != 0]
    return "; ".join(
        f"rank {exit_.rank} ended with {ending(exit_.status)} in its tear-down, after the job was done"
        for exit_ in crashed
    )


def ending(status: int) -> str:
    """`status` in words."""
    return f"exit code {status}" if status >= 0 else signal_name(-status)


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; the number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
