"""Fixes the order in which DDP reduces gradients before the first batch, at every start alike.

DDP lays its buckets out anew after the first backward, in the order in which gradients came. A
resumed process would begin with the initial layout again, sum in another order, and end in other
bits, at three ranks or more. This file is the seam to what torch keeps private of that.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch.nn.functional import embedding
from torch.nn.parallel import DistributedDataParallel


def settle_buckets(ddp: DistributedDataParallel) -> None:
    """Have `ddp` lay out its buckets as it will keep them.

    Runs two backwards over the sum of all trainable parameters: no batch, no loss, no buffer, no
    random draw, no hook of the user's, and no gradient left behind. Call it right after the
    constructor, on all ranks. Raises `ValueError` for what cannot be settled.
    """
    _refuse(ddp)
    if ddp.find_unused_parameters:
        return  # DDP keeps its first layout then, at every start
    parameters = [parameter for parameter in ddp.module.parameters() if parameter.requires_grad]
    with _stand_in(ddp), hooks_silenced(parameters), gradients_kept(parameters):
        ddp.forward().backward()  # type: ignore[no-untyped-call]  # torch leaves DDP untyped
        # The second forward lays the buckets out. Its backward must follow: DDP would go on
        # waiting for it, and reduce in a first micro-batch that was to run under `no_sync`.
        ddp.forward().backward()  # type: ignore[no-untyped-call]
    if not ddp._has_rebuilt_buckets:
        raise RuntimeError(
            f"torch {torch.__version__} did not lay out DDP's buckets: at three ranks or more a"
            " resume would end in other bits. Leave out unusual options of DDP (mixed_precision)"
        )


_DECIDES = (
    "bucket_bytes_cap",
    "broadcast_buffers",
    "find_unused_parameters",
    "gradient_as_bucket_view",
)


def reductions(ddps: Sequence[DistributedDataParallel]) -> dict[str, str]:
    """What decides in which order each DDP adds, and what: its settings and its hooks, as text."""
    found: dict[str, str] = {}
    for number, ddp in enumerate(ddps):
        at = f"ddp.{number}." if number else "ddp."
        hooks = [getattr(hook, "__qualname__", type(hook).__name__) for hook, _ in ddp._comm_hooks]
        found |= {f"{at}{name}": str(getattr(ddp, name)) for name in _DECIDES}
        found[f"{at}comm_hooks"] = ", ".join(hooks) or "none"
    return found


def _refuse(ddp: DistributedDataParallel) -> None:
    if ddp.static_graph:
        raise ValueError(
            "static_graph=True records the first backward as the graph of all: its buckets cannot be"
            " settled beforehand, and a resume would not be exact. Leave static_graph=False"
        )
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in ddp.module.parameters()):
        raise ValueError(
            "an optimizer that steps inside backward (apply_optimizer_in_backward) cannot be"
            " resumed exactly: step it after backward"
        )


class _Sum(torch.nn.Module):
    """Stands in for the model: its output depends on every trainable parameter and on nothing else."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._terms = list(_terms(model))  # a plain list: the model is no child of this module

    def forward(self) -> torch.Tensor:
        """The sum, in float32 on the first parameter's device."""
        total = torch.zeros((), device=self._terms[0][0].device)
        for parameter, sparse in self._terms:
            total = total + _term(parameter, sparse).to(total)
        return total


def _terms(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Parameter, bool]]:
    """Each trainable parameter once, and whether its gradient is sparse, as DDP judges it."""
    seen: set[torch.nn.Parameter] = set()
    for module in model.modules():
        sparse = isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad and parameter not in seen:
                seen.add(parameter)
                yield parameter, sparse


def _term(parameter: torch.nn.Parameter, sparse: bool) -> torch.Tensor:
    if sparse:
        first = torch.zeros(1, dtype=torch.int64, device=parameter.device)
        return embedding(first, parameter, sparse=True).sum()
    if parameter.is_complex():
        return torch.view_as_real(parameter).sum()
    return parameter.sum()


@contextmanager
def _stand_in(ddp: DistributedDataParallel) -> Iterator[None]:
    """For a moment `ddp` runs `_Sum` in place of its model, and broadcasts no buffer.

    The model itself is not touched, so its hooks do not run, whether it is compiled, scripted or
    patched. `_lazy_init_ran` falls back, for DDP looks at the model once, at its first forward.
    """
    model, initialised = ddp.module, ddp._lazy_init_ran
    ddp.module = _Sum(model)
    vars(ddp)["will_sync_module_buffers"] = lambda: False
    try:
        yield
    finally:
        ddp.module = model
        del vars(ddp)["will_sync_module_buffers"]
        ddp._lazy_init_ran = initialised


@contextmanager
def hooks_silenced(parameters: list[torch.nn.Parameter]) -> Iterator[None]:
    """No hook on a parameter's gradient runs: one may step an optimizer, count or draw.

    The dictionaries are emptied in place, for handles to remove a hook point at them.
    """
    with ExitStack() as stack:
        for parameter in parameters:
            for hooks in (parameter._backward_hooks, parameter._post_accumulate_grad_hooks):
                if hooks:
                    stack.callback(hooks.update, dict(hooks))
                    hooks.clear()
        yield


@contextmanager
def gradients_kept(parameters: list[torch.nn.Parameter]) -> Iterator[None]:
    """Gradients are recorded, and afterwards every parameter has the one that it had: mostly None."""
    gradients = [parameter.grad for parameter in parameters]
    try:
        with torch.enable_grad():
            for parameter in parameters:
                parameter.grad = None
            yield
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
