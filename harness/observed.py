"""What the loop says of itself: losses and tokens, kept until the step ends.

A loss stays a detached scalar on its device. On an accelerator it is read one step late, since
reading it at once would wait for the device in every step.
"""

from dataclasses import dataclass
from typing import SupportsFloat, SupportsInt

import torch
from torch import Tensor

from harness.signals.late import Numbers, numbers


class Evaluation:
    """A score of held-out data; the loop sets `loss` inside `job.evaluating()`."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._loss: float | None = None

    @property
    def loss(self) -> float | None:
        """None until it is set: to a number, or to a tensor or array of one, which is read at once.

        Raises `ValueError` for what is no such number.
        """
        return self._loss

    @loss.setter
    def loss(self, loss: SupportsFloat | None) -> None:
        try:
            self._loss = None if loss is None else float(loss)
        except (TypeError, ValueError, RuntimeError):
            shape = tuple(getattr(loss, "shape", ()))
            raise ValueError(
                f"evaluation.loss is one number; this is a {type(loss).__name__}"
                f"{f' of shape {shape}' if shape else ''}: give its mean"
            ) from None


@dataclass(frozen=True, slots=True)
class Observation:
    """Of one step on this rank."""

    tokens: int
    loss: float | None
    loss_step: int | None


class Observed:
    """Sums what one rank observes within a step."""

    def __init__(self, late: bool) -> None:
        self._late = late
        self._pending: tuple[int, Numbers] | None = None
        self._loss: Tensor | None = None
        self._losses = 0
        self._tokens = 0

    def add(self, loss: Tensor | float | None, tokens: SupportsInt) -> None:
        """Of one micro-batch; `loss` is a scalar, and the step's is the mean of its losses.

        Raises `ValueError` for what is no such number. A count of tokens is read at once.
        """
        count = int(tokens)
        if count < 0:
            raise ValueError(f"tokens = {count}: it is how many a micro-batch has, 0 or more")
        self._tokens += count
        if loss is None:
            return
        if isinstance(loss, Tensor):
            scalar = loss.detach().clone()  # a script may reduce its own in place
        else:  # in double precision: in another it might be infinite
            scalar = torch.tensor(loss, dtype=torch.float64)
        if scalar.numel() != 1:
            raise ValueError(
                f"a loss is one number; this one has shape {tuple(scalar.shape)}: give its mean"
            )
        self._loss = scalar if self._loss is None else self._loss + scalar
        self._losses += 1

    def mean(self) -> Tensor | None:
        """The loss of the step under way, a scalar on its device."""
        if self._loss is None or self._losses == 1:
            return self._loss
        return self._loss / self._losses

    def take(self, step: int) -> Observation:
        """What was observed in `step`, and the newest loss that can be read without waiting."""
        now = None if (mean := self.mean()) is None else (step, numbers([mean]))
        readable = self._pending if self._late else now
        self._pending = now
        observation = Observation(
            self._tokens,
            None if readable is None else readable[1].read()[0],
            None if readable is None else readable[0],
        )
        self._loss, self._losses, self._tokens = None, 0, 0
        return observation
