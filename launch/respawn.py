"""Whether a helper that died is started again, and when. Decides, from how long its lives were.

A helper serves the job, which goes on without it: so one that cannot live is given up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from launch import backoff

LASTING_S = 60.0
"""A life this long was no failure to start: what died before it is forgiven."""
BRIEF_LIVES = 5
"""So many lives in a row that were shorter than that, and it is given up."""
STOPPED_S = 10.0
"""One that is stopped (SIGSTOP) for so long serves nobody, and is as good as dead."""
FIRST_WAIT_S, MOST_WAIT_S = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class Again:
    """It is started again after a wait."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class GivenUp:
    """It is not started again."""

    reason: str


def decide(lived_s: Sequence[float]) -> Again | GivenUp:
    """What to do about a helper whose lives lasted so long, the last of which just ended."""
    brief = len(list(takewhile(lambda life_s: life_s < LASTING_S, reversed(lived_s))))
    if brief >= BRIEF_LIVES:
        return GivenUp(f"it died {brief} times in a row within {LASTING_S:g} s of its start")
    return Again(backoff.wait_s(brief, FIRST_WAIT_S, MOST_WAIT_S))
