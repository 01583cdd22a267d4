"""What ends an attempt because its state must not be kept. The launcher tells causes by these names."""

from collections.abc import Sequence


class UnsoundStateError(RuntimeError):
    """The state of this attempt is not to be saved: go on from the last one that was."""


class NonfiniteError(UnsoundStateError):
    """A loss of this rank is NaN or infinite."""


class NonfiniteGradientError(NonfiniteError):
    """The reduced gradient is NaN or infinite, perhaps by another rank's doing."""


class SpikeError(UnsoundStateError):
    """The loss has jumped, and the run is to go back to a state from before that."""


class CorruptionError(UnsoundStateError):
    """This rank holds what it cannot have computed, or nobody can tell which rank does."""


class CorruptPeerError(CorruptionError):
    """Another rank does, and is named."""


class SwitchedError(UnsoundStateError, ValueError):
    """A switch that decides bits is not as the run began with it."""


def corrupt(said: str, rank: int, odd: Sequence[int]) -> CorruptionError:
    """What `rank` raises where the ranks `odd` hold what the others do not; none if nobody knows."""
    return CorruptPeerError(said) if odd and rank not in odd else CorruptionError(said)
