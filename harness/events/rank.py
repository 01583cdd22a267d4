"""What every rank says of itself: who it is, how its steps went, what it holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.events.entry import Event
from harness.events.words import Place, Reaction


@dataclass(frozen=True, slots=True)
class RankJoined(Event):
    """A rank registered itself and is about to join the group."""

    pid: int
    start_ticks: int
    """Start of the process in clock ticks since boot (field 22 of /proc/PID/stat)."""
    local_rank: int | None = None
    node: str = ""
    """Name of its machine."""
    gpu_uuid: str = ""
    """Of its device, as NVIDIA's tools print it; empty on CPU."""


@dataclass(frozen=True, slots=True)
class StepTimed(Event):
    """How this rank's part of a step went; about one a second where steps are short."""

    step: int
    own_ns: int
    """Its own part: batches, forward and backward, the optimizer, the loop's own code."""
    wait_ns: int
    """From its last gradient until its optimizer began: waiting for the others, and the reduction."""
    data_ns: int = 0
    """Of its own part: waiting for its batches."""
    compute_ns: int = 0
    """Of its own part: forward, backward and the optimizer."""
    steps: int = 1
    """Of how many steps, up to this one, these are the means."""


@dataclass(frozen=True, slots=True)
class StateDigested(Event):
    """Digests of this rank's whole state after `step` steps, by component, where asked for."""

    step: int
    components: Mapping[str, str] = field(default_factory=dict)
    """Component name (`model`, `optimizer`, `rng`, …, `samples`, `loss`) to a hex digest."""


@dataclass(frozen=True, slots=True)
class NonfiniteFound(Event):
    """NaN or an infinity in `step`: in this rank's loss, (told by rank 0) in the reduced gradient, or in the weights."""

    step: int
    place: Place
    reaction: Reaction
