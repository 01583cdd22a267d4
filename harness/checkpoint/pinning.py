"""Memory that a GPU writes to without help: its pages are locked."""

from collections.abc import Mapping

import torch
from torch import Tensor

from harness.checkpoint.tell import warn


def from_gpu(tensors: Mapping[str, Tensor]) -> bool:
    """Whether any of them is copied by a GPU."""
    return any(tensor.is_cuda for tensor in tensors.values())


def pin(memory: Tensor) -> bool:
    """Have CUDA lock the pages of `memory`; False, and said, where it refuses."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    refusal = int(runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), 0))
    if refusal:
        warn(
            f"CUDA does not lock the memory for copies (error {refusal}): saves stop training longer"
        )
    return not refusal


def unpin(memory: Tensor) -> None:
    """Take back `pin`, before the memory goes."""
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())  # type: ignore[no-untyped-call]
