"""All eyes that one rank has on its training, in the order in which a step meets them."""

from torch.optim import Optimizer

from harness.components import Protected
from harness.observed import Observed
from harness.settings import Settings
from harness.signals.health import Health
from harness.signals.recompute import Audit
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
        self._optimizers: set[Optimizer] = set()
        self.audit = Audit(voice, settings, rank, world_size)
        self._replicas = Replicas(
            voice, settings, rank, world_size, late, names=protected.replicated
        )

    def watch_optimizer(self, optimizer: Optimizer) -> None:
        """Look at the gradients that `optimizer` gets, and at what it makes of them."""
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            self.health.watch_optimizer(optimizer)
            optimizer.register_step_pre_hook(lambda *_: self.audit.before_update())

    def start(self) -> None:
        """Training begins, and what is protected stands fast."""
        self.health.name(self._protected.names())

    def begin(self, step: int) -> None:
        """Step number `step` begins."""
        self.health.begin(step)
        self.audit.begin(step)

    def finish(self, step: int, last: bool) -> None:
        """Step number `step` is done."""
        self.health.finish(step, last)
        self._replicas.finish(step, last)

    def vouch(self) -> None:
        """Before a save: nothing that was found, or might be, forbids to keep this state."""
        self.health.settle()
        self._replicas.vouch()
