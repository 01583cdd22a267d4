"""How each kind of object gives its state as a tree, tells what does not fit, and takes it back.

What DDP keeps equal on all ranks can be `shared`: a module's parameters, an optimizer's state. Buffers,
streams, schedules, scalers and samplers belong to each rank: theirs is `own`.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Tree = dict[str, Any]


@runtime_checkable
class Stateful(Protocol):
    """What gives and takes its state. A method `differences(state) -> list[str]` is asked, if any."""

    def state_dict(self) -> Any:
        """The state, as a tree."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Go on from a state."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The state of one object as it was saved."""

    shared: Tree
    own: Tree


class Part(ABC):
    """One protected object. Trees hold live tensors; lines begin where the object's name ends."""

    __slots__ = ()

    def shared(self) -> Tree:
        """What is equal on all ranks."""
        return {}

    def own(self) -> Tree:
        """What belongs to this rank."""
        return {}

    @abstractmethod
    def differences(self, saved: Saved) -> list[str]:
        """A line for each way in which a saved state does not fit."""

    @abstractmethod
    def restore(self, saved: Saved) -> None:
        """Put a saved state that fits in place."""


# ── modules ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ModulePart(Part):
    """A model: its parameters are shared; its buffers and extra state are this rank's own.

    Buffers that the module does not save itself are saved as well, as `caches`: who knows what they
    decide. A cache may have another shape in a fresh module, for many are made in the first forward.
    """

    module: nn.Module

    def shared(self) -> Tree:
        """Parameters by name, tied ones under each of theirs."""
        return dict(self.module.named_parameters(remove_duplicate=False))

    def own(self) -> Tree:
        """Buffers, caches and extra state by name, where there are any."""
        buffers = dict(self.module.named_buffers(remove_duplicate=False))
        persistent = self.module.state_dict(keep_vars=True).keys() if buffers else ()
        parts = {
            "buffers": {name: buffers[name] for name in buffers if name in persistent},
            "caches": {name: buffers[name] for name in buffers if name not in persistent},
            "extra": {name: module.get_extra_state() for name, module in self._with_extra()},
        }
        return {kind: part for kind, part in parts.items() if part}

    def differences(self, saved: Saved) -> list[str]:
        """Names, shapes, dtypes and ties."""
        here = self.own()
        lines = tensors_unlike(".", self.shared(), saved.shared)
        lines += _ties_unlike(self.shared(), saved.shared)
        for kind, unlike in (("buffers", tensors_unlike), ("extra", only_on_one_side)):
            lines += unlike(".", here.get(kind, {}), saved.own.get(kind, {}))
        return lines + [
            f".{path} is a buffer of the saved state and has no place here"
            for path in saved.own.get("caches", {})
            if not self._has(path)
        ]

    def restore(self, saved: Saved) -> None:
        """Write into the tensors that are there, so that whoever holds them sees the new values."""
        buffers = dict(self.module.named_buffers(remove_duplicate=False))
        with torch.no_grad():
            for name, parameter in self.shared().items():
                parameter.copy_(saved.shared[name])
            for kind in ("buffers", "caches"):
                for name, tensor in saved.own.get(kind, {}).items():
                    self._write(name, buffers.get(name), tensor)
        for name, module in self._with_extra():
            module.set_extra_state(deepcopy(saved.own["extra"][name]))

    def _with_extra(self) -> Iterator[tuple[str, nn.Module]]:
        for name, module in self.module.named_modules():
            if type(module).get_extra_state is not nn.Module.get_extra_state:
                yield name, module

    def _has(self, path: str) -> bool:
        owner, _, name = path.rpartition(".")
        modules = dict(self.module.named_modules(remove_duplicate=False))
        return owner in modules and hasattr(modules[owner], name)

    def _write(self, path: str, found: Tensor | None, saved: Tensor) -> None:
        if found is not None and _form(found) == _form(saved):
            found.copy_(saved)
            return
        owner, _, name = path.rpartition(".")
        device = next((p.device for p in self.module.parameters()), saved.device)
        setattr(self.module.get_submodule(owner), name, saved.to(device, copy=True))


def _ties_unlike(here: Tree, saved: Tree) -> list[str]:
    """A line for each pair of names that are one tensor on one side alone."""
    first_here, first_saved = _firsts(here), _firsts(saved)
    return [
        f".{name} is tied to {first_here[name]!r} here and was to {first_saved[name]!r}"
        for name in here
        if name in saved and first_here[name] != first_saved[name]
    ]


def _firsts(tensors: Tree) -> dict[str, str]:
    firsts: dict[int, str] = {}
    return {name: firsts.setdefault(id(tensor), name) for name, tensor in tensors.items()}


# ── everything else ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class StreamPart(Part):
    """A random stream of the user's own."""

    generator: torch.Generator

    def own(self) -> Tree:
        """Where the stream is."""
        return {"stream": self.generator.get_state()}

    def differences(self, saved: Saved) -> list[str]:
        """Whether it is a stream of the same kind."""
        return tensors_unlike(" ", self.own(), saved.own)

    def restore(self, saved: Saved) -> None:
        """Go on from there."""
        self.generator.set_state(saved.own["stream"].cpu())


@dataclass(frozen=True, slots=True)
class OtherPart(Part):
    """Whatever has a state: a schedule, a scaler, a sampler, an average of weights."""

    thing: Stateful

    def own(self) -> Tree:
        """Its class and its state."""
        return {"class": type(self.thing).__qualname__, "state": self.thing.state_dict()}

    def differences(self, saved: Saved) -> list[str]:
        """Class, then what the object itself says, or names at the top and tensors anywhere."""
        here, there = self.own(), saved.own
        if here["class"] != there.get("class"):
            return [
                f" is a {here['class']} and was a {there.get('class', 'thing of another kind')}"
            ]
        ask = getattr(self.thing, "differences", None)
        if ask is not None:
            return [f" {line}" for line in ask(there["state"])]
        lines = []
        if isinstance(here["state"], Mapping) and isinstance(there["state"], Mapping):
            lines += only_on_one_side(" state ", here["state"], there["state"])
        return lines + _deep_unlike(" state", here["state"], there["state"])

    def restore(self, saved: Saved) -> None:
        """Load a copy: many objects keep what they are given."""
        self.thing.load_state_dict(deepcopy(saved.own["state"]))


# ── comparing ───────────────────────────────────────────────────────────────────────────────────


def only_on_one_side(at: str, here: Collection[Any], saved: Collection[Any]) -> list[str]:
    """A line for each name that is missing here, and for each that the saved state lacks."""
    missing = [
        f"{at}{name} is in the saved state and not here" for name in saved if name not in here
    ]
    return missing + [
        f"{at}{name} is here and not in the saved state" for name in here if name not in saved
    ]


def tensors_unlike(at: str, here: Tree, saved: Tree) -> list[str]:
    """A line for each name on one side alone, and for each tensor of another shape or dtype."""
    return only_on_one_side(at, here, saved) + [
        f"{at}{name} is {_form(here[name])} and was {_form(saved[name])}"
        for name in here
        if name in saved and _form(here[name]) != _form(saved[name])
    ]


def _deep_unlike(at: str, here: Any, saved: Any) -> list[str]:
    """A line for each tensor of another shape or dtype at a path that both sides have."""
    if isinstance(here, Tensor) and isinstance(saved, Tensor):
        same = _form(here) == _form(saved)
        return [] if same else [f"{at} is {_form(here)} and was {_form(saved)}"]
    if isinstance(here, Mapping) and isinstance(saved, Mapping):
        pairs = [(f"{at}.{key}", here[key], saved[key]) for key in here if key in saved]
    elif isinstance(here, list | tuple) and isinstance(saved, list | tuple):
        pairs = [(f"{at}[{i}]", *both) for i, both in enumerate(zip(here, saved, strict=False))]
    else:
        return []
    return [line for path, mine, was in pairs for line in _deep_unlike(path, mine, was)]


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
