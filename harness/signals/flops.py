"""The arithmetic of training, counted by torch once and beside the loop; the peak of a device, measured.

Counting takes a forward and a backward of its own. Whatever those change (gradients, buffers, random
streams) is put back, so a run that counts has the bits of one that does not.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from harness import exactness
from harness.buckets import gradients_kept, hooks_silenced

_ATEN: Any = torch.ops.aten
_LEAST_PRODUCTS, _MOST_PRODUCTS, _MEASURED_S = 3, 20, 1.0
"""Of a peak that is measured: so many, but not for much longer. Neighbours on a CPU make most of them slow."""


def count(forward: Callable[[], Tensor], models: Sequence[nn.Module]) -> int:
    """Operations of `forward` and of the backward of the loss that it gives, on this rank.

    DDPs among `models` run as the plain models inside them, so there is no collective. 0 means that
    all of it is in operations that the counter does not know.
    """
    parameters = [p for model in models for p in model.parameters() if p.requires_grad]
    streams = exactness.capture_rng()
    try:
        with ExitStack() as stack:
            stack.enter_context(_without_reduction(models))
            stack.enter_context(_buffers_kept(models))
            stack.enter_context(hooks_silenced(parameters))
            stack.enter_context(gradients_kept(parameters))
            # A compiled model would be compiled anew under the counter, and hide what it does.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            counter = FlopCounterMode(display=False, custom_mapping=_UNKNOWN_TO_TORCH)
            with counter:
                forward().backward()  # type: ignore[no-untyped-call]  # torch's own
    finally:
        exactness.restore_rng(streams)
    return int(counter.get_total_flops())


def measured_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of the best of some matrix products: what this device really reaches."""
    size = 1024 if device.type == "cpu" else 8192
    side = (torch.arange(size * size, device=device) % 7).to(dtype).reshape(size, size) / 7
    took_s: list[float] = []
    while len(took_s) < _LEAST_PRODUCTS or (
        len(took_s) < _MOST_PRODUCTS and sum(took_s) < _MEASURED_S
    ):
        took_s.append(_seconds(side))
    return float(2 * size**3 / min(took_s))


def _seconds(side: Tensor) -> float:
    """One product, waited for: this is no step."""
    synchronize: Any = torch.cuda.synchronize if side.is_cuda else lambda: None
    synchronize()
    began = time.perf_counter()
    side @ side
    synchronize()
    return time.perf_counter() - began


# ── what the counter does not know ──────────────────────────────────────────────────────────────


def _attention(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> int:
    """Two products for each head, of shapes (batch, heads, length, width); causal ones count in full."""
    batch, heads, length, width = query
    return 2 * batch * heads * length * key[-2] * (width + value[-1])


def _forward(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    return _attention(query, key, value)


def _backward(
    _: Sequence[int],
    query: Sequence[int],
    key: Sequence[int],
    value: Sequence[int],
    *__: Any,
    **___: Any,
) -> int:
    """Five products for two: the scores are computed again."""
    return _attention(query, key, value) * 5 // 2


_UNKNOWN_TO_TORCH: dict[Any, Callable[..., int]] = {
    # torch 2.13 counts 0 for attention on a CPU without dropout.
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _forward,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _backward,
}


# ── what is put back ────────────────────────────────────────────────────────────────────────────


@contextmanager
def _without_reduction(models: Sequence[nn.Module]) -> Iterator[None]:
    """For a moment each DDP calls its model and does nothing else."""
    ddps = [model for model in models if isinstance(model, DistributedDataParallel)]
    for ddp in ddps:
        vars(ddp)["forward"] = ddp.module
    try:
        yield
    finally:
        for ddp in ddps:
            del vars(ddp)["forward"]


@contextmanager
def _buffers_kept(models: Sequence[nn.Module]) -> Iterator[None]:
    """What a forward does to buffers, such as a running mean, is undone."""
    kept = [(buffer, buffer.detach().clone()) for model in models for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in kept:
                buffer.copy_(before)
