"""How long this rank's own part of a step took, apart from waiting for the others.

Own time runs from the step's start to the rank's last gradient. What follows, the rest of the
reduction and the optimizer, is spent in step with everyone else. What a rank passes on its way is
shown in its slot, so that one that is stuck is told from those that wait for it.
"""

import time
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from harness.slots import SlotWriter, Stage


@dataclass(frozen=True, slots=True)
class StepTime:
    """Of one step of one rank."""

    own_ns: int
    wait_ns: int


class Pace:
    """Times the steps of one rank by hooks that fire as gradients become ready."""

    def __init__(self, slot: SlotWriter | None = None) -> None:
        self._slot = slot
        self.stopped_ns = 0
        """CLOCK_MONOTONIC at which the last step ended."""
        self._started_ns = 0
        self._gradient_ns = 0
        self._aside_ns = 0
        self._aside_by_gradient_ns = 0
        self._gradients = 0
        self._gradients_before = 0
        """In the step before: after as many, this rank's own part of a step is done."""

    def watch(self, model: nn.Module) -> None:
        """Note each gradient of `model`. Nothing is added to the graph, so no bit changes."""
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]  # torch's own

    def watch_optimizer(self, optimizer: Optimizer) -> None:
        """Note when `optimizer` begins and ends a step."""
        optimizer.register_step_pre_hook(lambda *_: self.enter(Stage.UPDATING))
        optimizer.register_step_post_hook(lambda *_: self.enter(Stage.UPDATED))

    def start(self) -> None:
        """A step begins."""
        self._started_ns = self._gradient_ns = time.monotonic_ns()
        self._aside_ns = self._aside_by_gradient_ns = 0
        self._gradients = 0
        self.enter(Stage.BEGUN)

    def enter(self, stage: Stage) -> None:
        """This rank passes into `stage` of the step."""
        if self._slot is not None:
            self._slot.enter(stage)

    def set_aside(self, elapsed_ns: int) -> None:
        """Leave `elapsed_ns`, an evaluation inside the step, out of its time."""
        self._aside_ns += elapsed_ns

    def stop(self) -> StepTime:
        """The step is over. A model without hooks counts all as its own time."""
        end_ns = self.stopped_ns = time.monotonic_ns()
        if self._gradient_ns > self._started_ns:
            own_ns = self._gradient_ns - self._started_ns - self._aside_by_gradient_ns
        else:
            own_ns = end_ns - self._started_ns - self._aside_ns
        self._gradients_before = self._gradients
        own_ns = max(0, own_ns)
        return StepTime(own_ns, max(0, end_ns - self._started_ns - own_ns - self._aside_ns))

    def _note(self, _: Tensor) -> None:
        self._gradient_ns = time.monotonic_ns()
        self._aside_by_gradient_ns = self._aside_ns
        self._gradients += 1
        if self._slot is None:
            return
        if self._gradients == self._gradients_before:
            self._slot.enter(Stage.REDUCING)
        elif self._gradients == 1:
            self._slot.enter(Stage.COMPUTING)
        else:
            self._slot.advance()
