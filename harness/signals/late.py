"""Scalars on their way from a device: reading one waits for it, and for nothing that was begun later."""

import torch
from torch import Tensor


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
