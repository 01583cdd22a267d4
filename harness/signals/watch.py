"""All eyes that one rank has on its training, in the order in which a step meets them."""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from torch.optim import Optimizer

from harness.components import Protected
from harness.events import Tier
from harness.observed import Observed
from harness.optimizer import Names
from harness.pace import Pace
from harness.settings import Settings
from harness.signals.health import Health
from harness.signals.lengths import not_finite
from harness.signals.recompute import Audit
from harness.signals.replicas import Replicas
from harness.signals.rollback import Rollback
from harness.voice import Voice

LOG = logging.getLogger("harness")


class Watch:
    """Called at the bounds of every step, by all ranks alike. Raises `UnsoundStateError`."""

    def __init__(
        self,
        voice: Voice,
        observed: Observed,
        pace: Pace,
        protected: Protected,
        settings: Settings,
        rank: int,
        world_size: int,
        rollback: Rollback,
        late: bool,
        forget_copies: Callable[[], None] = lambda: None,
    ) -> None:
        self._pace = pace
        self._protected = protected
        goes_back = rollback if settings.on_spike == "rollback" else None
        self._forget_copies = forget_copies
        self.health = Health(
            voice, observed, settings, late, world_size, goes_back, self._forget_spoiled
        )
        self._rank, self._world_size = rank, world_size
        self._optimizers: set[Optimizer] = set()
        self.audit = Audit(voice, settings, rank, world_size)
        self._replicas = Replicas(
            voice, settings, rank, world_size, late, names=protected.replicated
        )

    def watch_optimizer(self, optimizer: Optimizer) -> None:
        """Look at the gradients that `optimizer` gets, and at what it makes of them."""
        if optimizer in self._optimizers:
            return
        self._optimizers.add(optimizer)
        # Hooks run in the order in which they were registered.
        optimizer.register_step_pre_hook(lambda *_: self._leave())
        optimizer.register_step_post_hook(lambda *_: self._leave())
        self.health.watch_optimizer(optimizer)
        optimizer.register_step_pre_hook(lambda *_: self.audit.before_update())
        optimizer.register_step_pre_hook(lambda *_: self._pace.back())
        optimizer.register_step_post_hook(lambda *_: self._pace.back())

    def _leave(self) -> None:
        """Where it takes longer than in other steps, or on other ranks, what is looked at is no own time."""
        if self.health.reads or self.audit.is_due:
            self._pace.leave()

    def start(self, step: int) -> None:
        """Training goes on after `step` steps, and what is protected stands fast."""
        self.health.name(self._protected.names())
        self.health.resume(step)

    def begin(self, step: int) -> None:
        """Step number `step` begins."""
        self.health.begin(step)
        self.audit.begin(step)

    def finish(self, step: int, last: bool) -> None:
        """Step number `step` is done: nothing of it comes after this but its end."""
        self._pace.leave()
        self.health.finish(step, last)
        self._replicas.finish(step, last)

    def vouch(self, tier: Tier) -> None:
        """Before a save: nothing that was found, or might be, forbids to keep this state."""
        # What is copied every second or so is not read through for it: it is gone with the run.
        self.health.vouch(self._stepped() if tier is Tier.STORAGE else {})
        self._replicas.vouch()

    def _forget_spoiled(self) -> None:
        """Before a NaN ends the attempt: where the weights have it too, so may their last copies.

        They are not looked through when they are taken. Whoever went on from one would come to the same
        end at once, and then again.
        """
        with suppress(Exception):  # the error that is on its way says more
            if not_finite([parameter for group in self._groups() for parameter in group["params"]]):
                LOG.warning("harness: the weights are not finite either: no copy in memory is kept")
                self._forget_copies()

    def _stepped(self) -> Names:
        """What the optimizers step: of what is equal on all ranks, each looks at its part."""
        names, equal = self._protected.names(), self._protected.replicated()
        stepped = {parameter for group in self._groups() for parameter in group["params"]}
        return {
            parameter: name
            for place, (parameter, name) in enumerate(names.items())
            if parameter in stepped
            if parameter not in equal or place % self._world_size == self._rank
        }

    def _groups(self) -> Iterator[dict[str, Any]]:
        for optimizer in self._optimizers:
            yield from optimizer.param_groups
