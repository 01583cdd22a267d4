"""What ends an attempt because its state must not be kept. The launcher tells causes by these names."""


class UnsoundStateError(RuntimeError):
    """The state of this attempt is not to be saved: go on from the last one that was."""


class NonfiniteError(UnsoundStateError):
    """A loss of this rank is NaN or infinite."""


class NonfiniteGradientError(NonfiniteError):
    """The reduced gradient is NaN or infinite, perhaps by another rank's doing."""


class CorruptionError(UnsoundStateError):
    """This rank holds what it cannot have computed, or nobody can tell which rank does."""


class CorruptPeerError(CorruptionError):
    """Another rank does, and is named."""
