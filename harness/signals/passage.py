"""What a step passes on its way, and how its time divides by that: pure.

Own time is what a rank needs for itself: waiting for its batches, forward and backward, the
optimizer, the loop's own code. From its last gradient until its optimizer begins it waits for the
others, and for the reduction itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, auto


class Place(IntEnum):
    """A place that a step passes."""

    START = auto()
    LOADING = auto()
    """A batch is asked for."""
    LOADED = auto()
    """It is there."""
    GRADIENT = auto()
    """The last of some gradients is ready; a further one moves the mark."""
    UPDATING = auto()
    """The optimizer begins: the reduction is over."""
    UPDATED = auto()
    ASIDE = auto()
    """The harness looks at what it watches; then the step goes on from the place before."""
    END = auto()


class Part(IntEnum):
    """What a stretch between two places is spent on."""

    DATA = auto()
    COMPUTE = auto()
    LOOP = auto()
    """The loop's own code: logging, schedules, whatever a script does besides."""
    WAIT = auto()
    ASIDE = auto()
    """The harness' own looking, of which rank 0 does more: nobody's delay."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Of one step of one rank."""

    own_ns: int
    wait_ns: int
    data_ns: int = 0
    """Of its own time: waiting for its batches."""
    compute_ns: int = 0
    """Of its own time: forward, backward and the optimizer. What is neither is the loop's own code."""


def part(since: Place, until: Place) -> Part:
    """What the stretch from one place to the next is spent on."""
    if since is Place.ASIDE:
        return Part.ASIDE
    if since is Place.LOADING:
        return Part.DATA
    if since is Place.GRADIENT and until is not Place.GRADIENT:
        return Part.WAIT
    if since in (Place.START, Place.UPDATED) and until in (Place.LOADING, Place.ASIDE, Place.END):
        return Part.LOOP
    return Part.COMPUTE


_PLACES = (Place.START, *Place)
_PARTS = [[part(since, until) for until in _PLACES] for since in _PLACES]
"""By both places, which count from one: every step asks for several, and an enumeration hashes slowly."""


def divide(
    places: Sequence[Place], instants_ns: Sequence[int], asides_ns: Sequence[int]
) -> StepTime:
    """How the time of a step divides that passed `places` at `instants_ns`.

    `asides_ns` is what is left out of the stretch after each place, such as an evaluation.
    """
    spent_ns = [0] * (len(Part) + 1)
    for at in range(len(places) - 1):
        passed_ns = instants_ns[at + 1] - instants_ns[at] - asides_ns[at]
        spent_ns[_PARTS[places[at]][places[at + 1]]] += max(0, passed_ns)
    data_ns, compute_ns = spent_ns[Part.DATA], spent_ns[Part.COMPUTE]
    own_ns = data_ns + compute_ns + spent_ns[Part.LOOP]
    return StepTime(own_ns, spent_ns[Part.WAIT], data_ns, compute_ns)
