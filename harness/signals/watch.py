"""All eyes that one rank has on its training, in the order in which a step meets them."""

from harness.components import Protected
from harness.observed import Observed
from harness.settings import Settings
from harness.signals.health import Health
from harness.signals.replicas import Replicas
from harness.voice import Voice


class Watch:
    """Called at the bounds of every step, by all ranks alike. Raises `UnsoundStateError`."""

    def __init__(
        self,
        voice: Voice,
        observed: Observed,
        protected: Protected,
        settings: Settings,
        rank: int,
        world_size: int,
        late: bool,
    ) -> None:
        self._protected = protected
        self.health = Health(voice, observed, settings, late, world_size)
        self._replicas = Replicas(
            voice, settings, rank, world_size, late, names=protected.replicated
        )

    def start(self) -> None:
        """Training begins, and what is protected stands fast."""
        self.health.name(self._protected.names())

    def begin(self, step: int) -> None:
        """Step number `step` begins."""
        self.health.begin(step)

    def finish(self, step: int, last: bool) -> None:
        """Step number `step` is done."""
        self.health.finish(step, last)
        self._replicas.finish(step, last)

    def vouch(self) -> None:
        """Before a save: nothing that was found, or might be, forbids to keep this state."""
        self.health.settle()
        self._replicas.vouch()
