"""How long this rank's own part of a step took, apart from waiting for the others.

Hooks mark what a step passes, on the host's clock and, where there is one, on the device's. What a
rank passes on its way is shown in its slot too, so that one that is stuck is told from those that
wait for it.
"""

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from harness.signals.passage import Place, StepTime
from harness.signals.trail import HostTrail, device_trail
from harness.slots import SlotWriter, Stage

__all__ = ["Pace", "StepTime"]

_PLACES = {
    Stage.LOADING: Place.LOADING,
    Stage.COMPUTING: Place.LOADED,
    Stage.UPDATING: Place.UPDATING,
    Stage.UPDATED: Place.UPDATED,
}


class Pace:
    """Times the steps of one rank by hooks that fire as gradients become ready."""

    def __init__(self, slot: SlotWriter | None = None, device: torch.device | None = None) -> None:
        self._slot = slot
        self._host = HostTrail()
        self._device = device_trail(device or torch.device("cpu"))
        self._left: Place | None = None
        """Where the step was when the harness began to look at it; None while it does not."""
        self._gradients = 0
        self._gradients_before = 0
        """In the step before: after as many, this rank's own part of a step is done."""

    def watch(self, model: nn.Module) -> None:
        """Note each gradient of `model`. Nothing is added to the graph, so no bit changes."""
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.note)  # type: ignore[no-untyped-call]  # torch's own

    def watch_optimizer(self, optimizer: Optimizer) -> None:
        """Note when `optimizer` begins and ends a step."""
        optimizer.register_step_pre_hook(lambda *_: self.enter(Stage.UPDATING))
        optimizer.register_step_post_hook(lambda *_: self.enter(Stage.UPDATED))

    def start(self) -> None:
        """A step begins."""
        self._host.start()
        if self._device is not None:
            self._device.start()
        self._left = None
        self._gradients = 0
        self.enter(Stage.BEGUN)

    def enter(self, stage: Stage) -> None:
        """This rank passes into `stage` of the step."""
        if self._slot is not None:
            self._slot.enter(stage)
        place = _PLACES.get(stage)
        if place is not None:
            self._mark(place)

    def leave(self) -> None:
        """What follows is the harness' own looking, and in no part of the step, until `back`."""
        self._left = self._host.place
        self._mark(Place.ASIDE)

    def back(self) -> None:
        """The step goes on from where it was left, if it was."""
        left, self._left = self._left, None
        if left is not None:
            self._mark(left)

    def _mark(self, place: Place) -> None:
        self._host.mark(place)
        if self._device is not None:
            self._device.mark(place)

    def set_aside(self, elapsed_ns: int) -> None:
        """Leave `elapsed_ns`, an evaluation inside the step, out of its time."""
        self._host.set_aside(elapsed_ns)
        if self._device is not None:
            self._device.set_aside(elapsed_ns)

    def stop(self) -> StepTime:
        """The step is over. A model without hooks counts all as its own time.

        On a device this is the time of the newest step that the device has finished, mostly the one
        before; of the first steps it is the host's.
        """
        passed = self._host.stop()
        self._gradients_before = self._gradients
        late = None if self._device is None else self._device.stop()
        return passed if late is None else late

    def note(self, _: Tensor) -> None:
        """One more gradient is ready."""
        self._host.gradient()
        if self._device is not None:
            self._device.gradient()
        self._gradients += 1
        if self._slot is None:
            return
        if self._gradients == self._gradients_before:
            self._slot.enter(Stage.REDUCING)
        elif self._gradients == 1:
            self._slot.enter(Stage.COMPUTING)
        else:
            self._slot.advance()
