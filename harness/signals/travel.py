"""Batches and the like on their way to another rank: what was on an accelerator is on one again."""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class _Away:
    """A tensor that belongs on an accelerator."""

    tensor: Tensor


def departing(thing: Any) -> Any:
    """`thing` with all of its tensors on the host, in containers of the same kinds."""
    if isinstance(thing, Tensor):
        host = thing.detach().cpu()
        return host if thing.device.type == "cpu" else _Away(host)
    return _each(thing, departing)


def arrived(thing: Any, device: torch.device) -> Any:
    """What `departing` made, with those tensors on `device`."""
    if isinstance(thing, _Away):
        return thing.tensor.to(device)
    return _each(thing, lambda part: arrived(part, device))


def _each(thing: Any, of: Any) -> Any:
    if isinstance(thing, dict):
        return type(thing)({key: of(value) for key, value in thing.items()})
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        return type(thing)(*map(of, thing))
    if isinstance(thing, list | tuple):
        return type(thing)(map(of, thing))
    if is_dataclass(thing) and not isinstance(thing, type):
        return replace(thing, **{it.name: of(getattr(thing, it.name)) for it in fields(thing)})
    return thing
