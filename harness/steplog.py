"""What is told of each step: how long it took, what it used, what it came to, and of what state."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from harness.batches import Batches
from harness.digest import sample_digest
from harness.events import StateDigested, StepFinished
from harness.observed import Observed
from harness.pace import Pace, StepTime
from harness.signals.throughput import Arithmetic
from harness.signals.window import Window
from harness.slots import Mark
from harness.voice import Voice


class StepLog:
    """One rank's account of its steps. The loop's objects are handed in as they are made."""

    def __init__(
        self, voice: Voice, world_size: int, digest_every_steps: int, device: torch.device
    ) -> None:
        self.pace = Pace(voice.slot, device)
        self.arithmetic = Arithmetic(device)
        self.observed = Observed(late=device.type != "cpu")
        self.batches: Batches[object] | None = None
        self._voice = voice
        self._world_size = world_size
        self._digest_every_steps = digest_every_steps
        self._window = Window()
        self._has_told_arithmetic = False
        self._samples = 0

    def begin_at(self, step: int) -> None:
        """Training goes on after `step` finished steps, from the sampler's present position."""
        self._samples = self._position()
        self._voice.show(mark=Mark.STEPPING, step=step)

    def finish(self, step: int, last: bool, digests: Callable[[], Mapping[str, str]]) -> None:
        """Tell that `step` is done. `digests` is called only where a digest is due."""
        passed = self.pace.stop()
        loss = self.observed.mean()
        samples = self._tell_finished(step, passed)
        timed = self._window.add(step, passed, last)
        if timed is not None:
            self._voice.write(timed)
        self._tell_arithmetic()
        every = self._digest_every_steps
        if last or (every and step % every == 0):
            told = {**digests(), "samples": samples, "loss": _exactly(loss)}
            self._voice.write(StateDigested(step, told))

    def _tell_arithmetic(self) -> None:
        """After the first step: in which dtype a model computes shows in its first forward."""
        if self._has_told_arithmetic:
            return
        self._has_told_arithmetic = True
        known = self.arithmetic.known()
        if known is not None:
            self._voice.tell(known)

    def _tell_finished(self, step: int, passed: StepTime) -> str:
        """Write `StepFinished`; the digest of the sample ids that this rank used."""
        observation = self.observed.take(step)
        before, self._samples = self._samples, self._position()
        ids = np.empty(0, np.int64) if self.batches is None else self.batches.take_ids()
        samples = sample_digest(ids)
        self._voice.show(Mark.STEPPING, step, passed.own_ns, passed.wait_ns, observation.loss)
        self._voice.tell(
            StepFinished(
                step=step,
                samples_start=before,
                samples_end=self._samples,
                samples_digest=samples,
                tokens=observation.tokens * self._world_size,
                loss=observation.loss,
                loss_step=observation.loss_step,
            )
        )
        return samples

    def _position(self) -> int:
        """Samples consumed over all ranks; 0 where the sampler is not one of ours."""
        sampler = None if self.batches is None else self.batches.sampler
        return 0 if sampler is None else sampler.position


def _exactly(loss: Tensor | None) -> str:
    """A loss to the bit, or nothing."""
    return "" if loss is None else float(loss).hex()
