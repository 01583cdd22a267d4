"""How far an optimizer's step moves the weights, against how large they are.

The weights are copied before the step, so a measured step needs that much memory more while it lasts.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from harness.optimizer import Names
from harness.signals.blocks import grouped
from harness.signals.late import Late
from harness.signals.lengths import lengths


class Updates:
    """Measures the steps of the optimizers of one training step."""

    def __init__(self, names: Names, alone: Iterable[str] = ()) -> None:
        self._names = names
        self._alone = frozenset(alone)
        grouped(list(names.values()), self._alone)
        self._grouped: tuple[list[str], Mapping[str, Sequence[int]]] = [], {}
        """What stepped the last time, which is mostly what will the next time, and its groups."""
        self._before: dict[Optimizer, tuple[list[Tensor], list[Tensor]]] = {}
        self._moved: list[str] = []
        self._squares: list[Tensor] = []

    def before(self, optimizer: Optimizer) -> None:
        """`optimizer` is about to step."""
        stepped = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and parameter in self._names
        ]
        with torch.no_grad():
            self._before[optimizer] = stepped, [parameter.clone() for parameter in stepped]

    def after(self, optimizer: Optimizer) -> None:
        """It has."""
        stepped, copies = self._before.pop(optimizer, ([], []))
        if not stepped:
            return
        with torch.no_grad():
            torch._foreach_sub_(copies, stepped)
            self._moved += [self._names[parameter] for parameter in stepped]
            self._squares.append(torch.stack([_squares(copies), _squares(stepped)]))

    def taken(self) -> "Ratios | None":
        """What was measured since the last call; None if nothing was."""
        if not self._moved:
            return None
        squares = torch.cat([pair.to(self._squares[0].device) for pair in self._squares], dim=1)
        if self._moved != self._grouped[0]:
            found = grouped(self._moved, self._alone.intersection(self._moved))
            self._grouped = self._moved, found
        taken = Ratios(self._grouped[1], Late(squares))
        self._moved, self._squares = [], []
        return taken


class Ratios:
    """Update-to-weight ratios on their way from the device."""

    def __init__(self, groups: Mapping[str, Sequence[int]], squares: Late) -> None:
        self._groups = groups
        self._squares = squares

    def read(self) -> dict[str, float]:
        """By group; one whose ratio is no number is left out."""
        numbers = self._squares.read()
        half = len(numbers) // 2
        moved, weights = numbers[:half], numbers[half:]
        return {
            group: ratio
            for group, places in self._groups.items()
            if (ratio := _ratio([moved[p] for p in places], [weights[p] for p in places]))
            is not None
        }


def _squares(tensors: list[Tensor]) -> Tensor:
    """The sum of squares of each."""
    return lengths(tensors).square()


def _ratio(moved: Sequence[float], weights: Sequence[float]) -> float | None:
    weight = math.fsum(weights) if all(map(math.isfinite, weights)) else math.nan
    change = math.fsum(moved) if all(map(math.isfinite, moved)) else math.nan
    ratio = math.sqrt(change / weight) if weight > 0 else math.nan
    return ratio if math.isfinite(ratio) else None
