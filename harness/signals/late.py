"""Scalars on their way from a device: reading one waits for it, and for nothing that was begun later."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Numbers(Protocol):
    """Some numbers."""

    def read(self) -> list[float]:
        """The numbers, in a row."""


@dataclass(frozen=True, slots=True)
class Known:
    """Numbers that were on the host: a loop of small steps feels every tensor that is made of them."""

    numbers: list[float]

    def read(self) -> list[float]:
        """See `Numbers`."""
        return self.numbers


def numbers(scalars: Sequence[Tensor]) -> Numbers:
    """Of scalars where they are: those of a device go on their way, with the host's among them."""
    place = scalars[-1].device
    if all(it.device.type == "cpu" for it in scalars):
        return Known([float(it) for it in scalars])
    # A number of the host's must not wait for all that the device has still to do.
    doubles = (it.detach().to(place, torch.float64, non_blocking=True) for it in scalars)
    return Late(torch.stack([double.reshape(()) for double in doubles]))


class Late:
    """A few numbers, to be read some time after they were asked for. On a CPU they are there at once."""

    def __init__(self, values: Tensor) -> None:
        values = values.detach()
        self._event: torch.cuda.Event | None = None
        if values.device.type == "cpu":
            self._values = values.clone()
            return
        self._values = torch.empty_like(values, device="cpu", pin_memory=True)
        self._values.copy_(values, non_blocking=True)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it without types
        self._event.record(torch.cuda.current_stream(values.device))

    def tensor(self) -> Tensor:
        """The numbers, on the host."""
        if self._event is not None:
            self._event.synchronize()
        return self._values

    def read(self) -> list[float]:
        """The numbers, in a row."""
        return [float(value) for value in self.tensor().reshape(-1).tolist()]
