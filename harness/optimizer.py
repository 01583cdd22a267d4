"""How an optimizer gives its state as a tree, tells what does not fit, and takes it back bit for bit."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from harness.parts import Part, Saved, Tree, only_on_one_side

Names = dict[Tensor, str]
"""Parameters, by identity, and their names."""


@dataclass(frozen=True, slots=True)
class OptimizerPart(Part):
    """An optimizer: its state goes by the names of the parameters, not by their positions."""

    optimizer: Optimizer
    names: Callable[[], Names]
    """The parameters of all protected modules, as they are when it is asked."""

    def parameters(self) -> Iterator[Tensor]:
        """Everything that it steps."""
        for group in self.optimizer.param_groups:
            yield from group["params"]

    def moments(self) -> Iterator[Tensor]:
        """The tensors of its state."""
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))

    def shared(self) -> Tree:
        """Class, groups with their parameters in order, state by parameter, and the rest."""
        packed = self.optimizer.state_dict()
        numbered = self._numbered(packed)
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
        if here.keys() != there.keys():
            return [f" is a {here['class']} and was no optimizer"]
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
        packed = self.optimizer.state_dict()
        there, numbered = saved.shared, self._numbered(packed)
        state = {
            number: {key: _copied(value) for key, value in there["state"][name].items()}
            for number, (name, _) in numbered.items()
            if name in there["state"]
        }
        groups = zip(
            self.optimizer.param_groups,
            packed["param_groups"],
            there["groups"],
            strict=True,
        )
        self.optimizer.load_state_dict(
            {
                **deepcopy(there["rest"]),
                "state": state,
                "param_groups": [
                    _options(live, group["options"]) | {"params": numbers["params"]}
                    for live, numbers, group in groups
                ],
            }
        )
        for number, wanted in state.items():
            name, parameter = numbered[number]
            loaded, on_host = self.optimizer.state[parameter], there["on_host"].get(name, [])
            for key, value in wanted.items():
                loaded[key] = _settled(loaded[key], value, key in on_host)

    def strays(self) -> list[str]:
        """Which parameters are in no protected module."""
        names = self.names()
        return [
            f"parameter {position} of group {number}"
            for number, group in enumerate(self.optimizer.param_groups)
            for position, parameter in enumerate(group["params"])
            if parameter not in names
        ]

    def _numbered(self, packed: Tree) -> dict[int, tuple[str, Tensor]]:
        """Name and parameter behind each number in the optimizer's own state."""
        names = self.names()
        return {
            number: (names.get(parameter, f"parameter {number}"), parameter)
            for group, numbers in zip(
                self.optimizer.param_groups, packed["param_groups"], strict=True
            )
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


def _copied(value: Any) -> Any:
    """A copy that shares no memory; `deepcopy` takes ten times as long for a small tensor."""
    return value.clone() if type(value) is Tensor else deepcopy(value)


def _options(live: Tree, saved: Tree) -> Tree:
    """Copies of saved options, each tensor on the device of the one that it replaces."""
    return {
        key: value.to(live[key].device, copy=True)
        if isinstance(value, Tensor) and isinstance(live.get(key), Tensor)
        else deepcopy(value)
        for key, value in saved.items()
    }


def _settled(loaded: Any, saved: Any, on_host: bool) -> Any:
    """`loaded` with the dtypes of `saved`: torch casts state to its parameter's, and moves it there."""
    if isinstance(saved, Tensor):
        place = torch.device("cpu") if on_host else loaded.device
        same = loaded.dtype == saved.dtype and loaded.device == place
        return loaded if same else saved.to(place)
    if isinstance(saved, dict):
        return {key: _settled(loaded[key], value, on_host) for key, value in saved.items()}
    if isinstance(saved, list | tuple):
        pairs = zip(loaded, saved, strict=True)
        return type(saved)(_settled(mine, value, on_host) for mine, value in pairs)
    return saved  # torch takes a str for a container and would leave a generator's name


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
