"""Keeps every object whose state decides the future: takes it out, compares it, puts it back.

Nothing is modified before everything is known to fit: a state that does not is refused with a line
for every difference. How each kind of object gives and takes its state is told in `parts`.
"""

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from harness.checkpoint.tree import flatten
from harness.digest import digest
from harness.optimizer import Names, OptimizerPart
from harness.parts import (
    ModulePart,
    OtherPart,
    Part,
    Saved,
    Stateful,
    StreamPart,
    Tree,
    only_on_one_side,
)

RESERVED = ("rng", "samples", "loss")
"""Components that every job has."""

_SHARDED = ("FullyShardedDataParallel", "FSDPModule", "ZeroRedundancyOptimizer")


class Protected:
    """The objects under protection, by name.

    Only what DDP keeps equal is shared among several ranks: modules in a DDP, and optimizers that
    step nothing else. Any other module may differ from rank to rank, and each keeps its own.
    """

    def __init__(self, world_size: int = 1) -> None:
        self._world_size = world_size
        self._parts: dict[str, Part] = {}
        self._replicas: set[nn.Module] = set()
        self._standing = 0
        self._walked: _Walk | None = None
        """What was found while the modules are `standing`."""

    def add(self, **objects: Any) -> None:
        """Protect `objects`; one that is added again under its name replaces the former.

        Raises `ValueError` with a line for each that cannot be protected, or for each leaf of its
        state that no checkpoint can hold, and protects none of them then.
        """
        wrong = [line for name, thing in objects.items() for line in _refusals(name, thing)]
        if wrong:
            raise ValueError("\n".join(wrong))
        before, self._walked = self._parts, None
        self._parts = before | {name: self._part(thing) for name, thing in objects.items()}
        try:
            flatten({"shared": self._shared(), "own": self.own()})
        except ValueError:
            self._parts = before
            raise

    def _part(self, thing: Any) -> Part:
        if isinstance(thing, DistributedDataParallel):
            self._replicas.add(thing.module)
            return ModulePart(thing.module)
        if isinstance(thing, nn.Module):
            return ModulePart(thing)
        if isinstance(thing, Optimizer):
            return OptimizerPart(thing, self.names)
        if isinstance(thing, torch.Generator):
            return StreamPart(thing)
        return OtherPart(thing)

    def still(self) -> Iterator[Tensor]:
        """What nothing but a protected optimizer's step changes: what it steps, and its state."""
        for part in self._parts.values():
            if isinstance(part, OptimizerPart):
                yield from part.parameters()
                yield from part.moments()

    def holds(self, thing: object) -> bool:
        """True if `thing` itself is protected: a sampler, a loader and the like."""
        parts = self._parts.values()
        return any(isinstance(part, OtherPart) and part.thing is thing for part in parts)

    def check(self) -> None:
        """Raise `ValueError` with a line for each parameter that is stepped and not protected."""
        strays = [
            f"{name} steps {stray}, which is in no protected module: protect its module too"
            for name, part in self._parts.items()
            if isinstance(part, OptimizerPart)
            for stray in part.strays()
        ]
        if strays:
            raise ValueError("\n".join(strays))

    def shared(self) -> dict[str, Tree]:
        """What is equal on all ranks, by component: live tensors, no copies."""
        with self.standing():
            self.check()
            return self._shared()

    def _shared(self) -> dict[str, Tree]:
        with self.standing():
            parameters = self._walk().parameters
            return {
                name: parameters[name] if name in parameters else part.shared()
                for name, part in self._parts.items()
                if self._is_shared(part)
            }

    def _is_shared(self, part: Part) -> bool:
        """True for what is equal on all ranks by DDP's guarantee, and not by luck."""
        if self._world_size == 1:
            return isinstance(part, ModulePart | OptimizerPart)
        if isinstance(part, OptimizerPart):
            equal = self._walk().equal
            return all(parameter in equal for parameter in part.parameters())
        return isinstance(part, ModulePart) and part.module in self._replicas

    def own(self) -> dict[str, Tree]:
        """What belongs to this rank alone, likewise."""
        with self.standing():
            trees = {name: self._own(part) for name, part in self._parts.items()}
        return {name: tree for name, tree in trees.items() if tree}

    def _own(self, part: Part) -> Tree:
        unshared = {} if self._is_shared(part) else part.shared()
        return part.own() | ({"unshared": unshared} if unshared else {})

    def digests(self) -> dict[str, str]:
        """The digest of each component, causes before effects: a model's buffers have their own."""
        shared, own = self.shared(), self.own()
        found: dict[str, str] = {}
        for name in sorted(self._parts, key=lambda name: _ORDER.index(type(self._parts[name]))):
            if name in shared:
                found[name] = digest(shared[name])
            if name in own:
                found[f"{name}.buffers" if name in shared else name] = digest(own[name])
        return found

    def differences(self, shared: dict[str, Tree], own: dict[str, Tree]) -> list[str]:
        """A line for every way in which a saved state does not fit; touches nothing."""
        self.check()
        saved = {**own, **shared}
        lines = only_on_one_side("component ", self._parts, saved)
        for name, part in self._parts.items():
            if name in saved:
                found = part.differences(_saved(name, shared, own))
                lines += [f"{name}{line}" for line in found]
        return lines

    def restore(self, shared: dict[str, Tree], own: dict[str, Tree]) -> None:
        """Put a saved state in place; the trees stay the caller's.

        Raises `ValueError` that lists every difference, before anything is modified.
        """
        lines = self.differences(shared, own)
        if lines:
            raise ValueError("\n  ".join(["the saved state does not fit:", *lines]))
        for name, part in self._parts.items():
            part.restore(_saved(name, shared, own))

    def replicated(self) -> Names:
        """The parameters that DDP keeps equal on all ranks, and their names."""
        walk = self._walk()
        return {
            parameter: name for parameter, name in walk.names.items() if parameter in walk.equal
        }

    def names(self) -> Names:
        """Every parameter of the protected modules and its first name."""
        return self._walk().names

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Within this no module changes its parameters for others, so that all are walked through once.

        That takes as long as to copy a small model, and training waits for both.
        """
        self._standing += 1
        try:
            yield
        finally:
            self._standing -= 1
            if not self._standing:
                self._walked = None

    def _walk(self) -> "_Walk":
        walk = self._walked or _walk(self._parts, self._replicas)
        if self._standing:
            self._walked = walk
        return walk


@dataclass(frozen=True, slots=True)
class _Walk:
    """The parameters of all protected modules."""

    parameters: Mapping[str, Tree]
    """By module, then by name in it, tied ones under each of theirs."""
    names: Names
    """The first of each."""
    equal: Set[Tensor]
    """Those that DDP keeps equal on all ranks."""


def _walk(parts: Mapping[str, Part], replicas: Set[nn.Module]) -> _Walk:
    modules = {name: part for name, part in parts.items() if isinstance(part, ModulePart)}
    parameters = {name: part.shared() for name, part in modules.items()}
    names: Names = {}
    for name, tree in parameters.items():
        for path, parameter in tree.items():
            names.setdefault(parameter, f"{name}.{path}")
    equal = {
        parameter
        for name, tree in parameters.items()
        if modules[name].module in replicas
        for parameter in tree.values()
    }
    return _Walk(parameters, names, equal)


def _saved(name: str, shared: dict[str, Tree], own: dict[str, Tree]) -> Saved:
    """What was saved of an object, wherever: other numbers of ranks share other things."""
    mine = own.get(name, {})
    elsewhere: Tree = mine.get("unshared", {})
    return Saved(shared.get(name, elsewhere), mine)


_ORDER: tuple[type[Part], ...] = (OtherPart, StreamPart, OptimizerPart, ModulePart)


def _refusals(name: str, thing: Any) -> list[str]:
    """Why `thing` cannot be protected under `name`: no line if it can."""
    kind = type(thing).__qualname__
    lines = []
    if name in RESERVED:
        lines.append(f"{name} is a name of the harness' own: choose another")
    sharded = [ancestor.__name__ for ancestor in type(thing).__mro__]
    if any(ancestor in _SHARDED for ancestor in sharded):
        lines.append(f"{name} is a {kind}, whose state is sharded; that is not supported: use DDP")
    elif not isinstance(thing, Stateful | torch.Generator):
        lines.append(f"{name} is a {kind}, which has no state_dict and load_state_dict: add them")
    return lines
