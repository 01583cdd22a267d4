"""What a rank knows of the arithmetic of its job, and of its device: told once in an attempt."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from harness.events import ArithmeticKnown
from harness.rundir import RunDir
from harness.signals.peaks import Peak, peak


def by_formula(models: Iterable[nn.Module]) -> int:
    """Operations for a token: two for each trainable parameter in forward, four in backward."""
    unique = {p for model in models for p in model.parameters() if p.requires_grad}
    return 6 * sum(parameter.numel() for parameter in unique)


class Arithmetic:
    """Of one rank. It costs nothing in a step: a hook on the first forward takes itself away."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._models: list[nn.Module] = []
        self._dtype: torch.dtype | None = None
        """In which the first forward computed."""
        self._counted_per_token = 0.0
        self._measured: dict[str, Peak] = {}

    def watch(self, model: nn.Module) -> None:
        """`model` is trained."""
        self._models.append(model)
        handle: Any = None

        def note(*_: object) -> None:
            handle.remove()
            if self._dtype is None:
                self._dtype = self._computed_in()

        handle = model.register_forward_pre_hook(note)

    def count(self, forward: Callable[[], Tensor], tokens: int, run_dir: RunDir) -> None:
        """Count `forward`, which gives the loss of `tokens` tokens; measure a device that is unknown to the run."""
        if tokens < 1:
            raise ValueError(
                f"tokens = {tokens}: it is how many the counted forward takes, 1 or more"
            )
        # Torch's counter is not for those who do not ask for it.
        from harness.signals import flops, measured

        self._counted_per_token = flops.count(forward, self._models) / tokens
        dtype = self._dtype or self._computed_in()
        if self._peak() is None and dtype.is_floating_point:
            found = measured.reached(run_dir, self._device, dtype, self._kind())
            if found is not None:
                self._measured[self._kind()] = Peak(found, "a matrix product, measured")

    def known(self) -> ArithmeticKnown | None:
        """What there is to tell; None where no model is known, or nothing of the device."""
        found = self._peak()
        if not self._models or (found is None and not self._counted_per_token):
            return None
        return ArithmeticKnown(
            formula_flops=float(by_formula(self._models)),
            counted_flops=self._counted_per_token or None,
            peak_flops=None if found is None else found.flops,
            peak_source="" if found is None else found.source,
            dtype=self._kind(),
        )

    def _computed_in(self) -> torch.dtype:
        if torch.is_autocast_enabled(self._device.type):
            return torch.get_autocast_dtype(self._device.type)
        parameters = (p for model in self._models for p in model.parameters())
        return next((p.dtype for p in parameters), torch.get_default_dtype())

    def _kind(self) -> str:
        """The dtype by its name in the table."""
        dtype = self._dtype or self._computed_in()
        if dtype is torch.float32 and self._device.type == "cuda":
            rounded = torch.get_float32_matmul_precision() != "highest"
            return "tf32" if rounded else "float32"
        return str(dtype).removeprefix("torch.")

    def _peak(self) -> Peak | None:
        name = torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else ""
        return peak(name, self._kind()) or self._measured.get(self._kind())
