"""How each kind of object gives its state as a tree, tells what does not fit, and takes it back.

A module's parameters and an optimizer are equal on all ranks: their state is `shared`. Buffers,
streams, schedules, scalers and samplers belong to each rank: theirs is `own`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Tree = dict[str, Any]
Names = dict[Tensor, str]
"""Parameters, by identity, and their names."""


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
        persistent = self.module.state_dict(keep_vars=True).keys()
        buffers = dict(self.module.named_buffers(remove_duplicate=False))
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


# ── optimizers ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class OptimizerPart(Part):
    """An optimizer: its state goes by the names of the parameters, not by their positions."""

    optimizer: Optimizer
    names: Callable[[], Names]
    """The parameters of all protected modules, as they are when it is asked."""

    def shared(self) -> Tree:
        """Class, groups with their parameters in order, state by parameter, and the rest."""
        packed = self.optimizer.state_dict()
        numbered = self._numbered()
        stepped = {n: numbered[n] for n in numbered if n in packed["state"]}
        return {
            "class": f"{type(self.optimizer).__module__}.{type(self.optimizer).__qualname__}",
            "groups": [_group(group, numbered) for group in packed["param_groups"]],
            "state": {name: packed["state"][n] for n, (name, _) in stepped.items()},
            "on_host": {
                name: [key for key, value in packed["state"][n].items() if _on_host(value)]
                for n, (name, parameter) in stepped.items()
                if not _on_host(parameter)
            },
            "rest": {key: value for key, value in packed.items() if key not in _PACKED},
        }

    def differences(self, saved: Saved) -> list[str]:
        """Class, groups, options, parameters with their order and shapes."""
        here, there = self.shared(), saved.shared
        lines = []
        if here["class"] != there["class"]:
            lines.append(f" is a {here['class']} and was a {there['class']}")
        counts = len(here["groups"]), len(there["groups"])
        if counts[0] != counts[1]:
            lines.append(" has {} parameter group(s) and had {}".format(*counts))
        for number, (mine, was) in enumerate(zip(here["groups"], there["groups"], strict=False)):
            at = f" group {number}: "
            lines += only_on_one_side(f"{at}option ", mine["options"], was["options"])
            lines += _parameters_unlike(at, mine["parameters"], was["parameters"])
        return lines + only_on_one_side(" state ", here["rest"], there["rest"])

    def restore(self, saved: Saved) -> None:
        """Load, then undo what torch's loading does to dtypes and places."""
        there, numbered = saved.shared, self._numbered()
        state = {
            number: deepcopy(there["state"][name])
            for number, (name, _) in numbered.items()
            if name in there["state"]
        }
        groups = zip(
            self.optimizer.param_groups,
            self.optimizer.state_dict()["param_groups"],
            there["groups"],
            strict=True,
        )
        self.optimizer.load_state_dict(
            {
                **deepcopy(there["rest"]),
                "state": state,
                "param_groups": [
                    _options(live, group["options"]) | {"params": packed["params"]}
                    for live, packed, group in groups
                ],
            }
        )
        for number, wanted in state.items():
            name, parameter = numbered[number]
            on_host = there["on_host"].get(name, [])
            _settle_state(self.optimizer.state[parameter], wanted, on_host)

    def strays(self) -> list[str]:
        """Which parameters are in no protected module."""
        names = self.names()
        return [
            f"parameter {position} of group {number}"
            for number, group in enumerate(self.optimizer.param_groups)
            for position, parameter in enumerate(group["params"])
            if parameter not in names
        ]

    def _numbered(self) -> dict[int, tuple[str, Tensor]]:
        """Name and parameter behind each number in the optimizer's own state."""
        names = self.names()
        packed = self.optimizer.state_dict()["param_groups"]
        return {
            number: (names.get(parameter, f"parameter {number}"), parameter)
            for group, numbers in zip(self.optimizer.param_groups, packed, strict=True)
            for parameter, number in zip(group["params"], numbers["params"], strict=True)
        }


_PACKED = ("state", "param_groups")


def _group(packed: Tree, numbered: dict[int, tuple[str, Tensor]]) -> Tree:
    return {
        "options": {key: value for key, value in packed.items() if key != "params"},
        # A list, for the order counts and a dictionary's does not.
        "parameters": [
            (numbered[number][0], tuple(numbered[number][1].shape)) for number in packed["params"]
        ],
    }


def _on_host(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "cpu"


def _options(live: Tree, saved: Tree) -> Tree:
    """Copies of saved options, each tensor on the device of the one that it replaces."""
    return {
        key: value.to(live[key].device, copy=True)
        if isinstance(value, Tensor) and isinstance(live.get(key), Tensor)
        else deepcopy(value)
        for key, value in saved.items()
    }


def _settle_state(loaded: dict[str, Any], saved: Tree, on_host: Collection[str]) -> None:
    """`Optimizer.load_state_dict` casts state to its parameter's dtype and moves it: undo that."""
    for key, value in saved.items():
        if not isinstance(value, Tensor):
            continue
        place = torch.device("cpu") if key in on_host else loaded[key].device
        if loaded[key].dtype != value.dtype or loaded[key].device != place:
            loaded[key] = value.to(place)


def _parameters_unlike(
    at: str, here: list[tuple[str, Any]], saved: list[tuple[str, Any]]
) -> list[str]:
    """A line for each parameter that is missing, too many, of another shape or in another place."""
    shapes, shapes_saved = dict(here), dict(saved)
    lines = only_on_one_side(f"{at}parameter ", shapes, shapes_saved)
    lines += [
        f"{at}parameter {name} has shape {list(shape)} and had {list(shapes_saved[name])}"
        for name, shape in here
        if name in shapes_saved and tuple(shape) != tuple(shapes_saved[name])
    ]
    if set(shapes) == set(shapes_saved):
        lines += [
            f"{at}parameter {place} is {mine} and was {was}: give them in the saved order"
            for place, ((mine, _), (was, _)) in enumerate(zip(here, saved, strict=True))
            if mine != was
        ]
    return lines


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
        if here["class"] != there["class"]:
            return [f" is a {here['class']} and was a {there['class']}"]
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
