"""How failures come to a job: by a law, at given instants, by the rack, from lemons.

A process is asked for the first failure after an instant: at the start, and whenever the job is back.
It answers with the instant and the nodes that it hits; several nodes at once are one failure.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from harness.quantities import checked
from harness.simulation.draws import Draw
from harness.simulation.laws import Exponential, Law, first_after


class Failure(NamedTuple):
    """The job fails."""

    at_s: float
    nodes: Sequence[int] = ()
    """The nodes that are down with it, where the process knows; otherwise it is one."""


Next = Callable[[float], Failure]
"""Gives the first failure after an instant."""


class Failures(Protocol):
    """A way for failures to come; values, so that many runs can share one."""

    def begin(self, draw: Draw, /) -> Next:
        """A fresh run's failures, drawn from `draw`."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """Each gap is drawn anew from a law; the clock starts when the job is back."""

    gap: Law

    def __post_init__(self) -> None:
        checked("mean gap", self.gap.mean_s, above=0)

    def begin(self, draw: Draw, /) -> Next:
        """See `Failures`."""
        quantile_s = self.gap.quantile_s
        return lambda now_s: Failure(now_s + quantile_s(draw()))


@dataclass(frozen=True, slots=True)
class Instants:
    """Failures at given instants since the start; those that fall into a restart hit nothing."""

    at_s: Sequence[float]

    def __post_init__(self) -> None:
        if not self.at_s:
            raise ValueError("no failure in the list of instants: give at least one")
        for instant_s in self.at_s:
            checked("instant_s", instant_s, at_least=0)

    def begin(self, _draw: Draw, /) -> Next:
        """See `Failures`."""
        ordered = sorted(self.at_s)
        return lambda now_s: Failure(first_after(ordered, now_s))


@dataclass(frozen=True, slots=True)
class Racks:
    """Nodes fail one by one, and whole racks at once: one failure of the job, many nodes to replace."""

    nodes: int
    nodes_per_rack: int
    node_mtbf_s: float
    rack_mtbf_s: float

    def __post_init__(self) -> None:
        checked("nodes", self.nodes, at_least=1)
        checked("nodes_per_rack", self.nodes_per_rack, at_least=1)
        checked("node_mtbf_s", self.node_mtbf_s, above=0)
        checked("rack_mtbf_s", self.rack_mtbf_s, above=0)

    @property
    def racks(self) -> int:
        """How many racks there are; the last one may be in part empty."""
        return math.ceil(self.nodes / self.nodes_per_rack)

    @property
    def mtbf_s(self) -> float:
        """Mean time between failures of the job: the rates of all nodes and racks add up."""
        return 1 / (self.nodes / self.node_mtbf_s + self.racks / self.rack_mtbf_s)

    def begin(self, draw: Draw, /) -> Next:
        """See `Failures`."""
        gap = Exponential(self.mtbf_s)
        by_rack = self.mtbf_s * self.racks / self.rack_mtbf_s

        def following(now_s: float) -> Failure:
            at_s = now_s + gap.quantile_s(draw())
            if draw() >= by_rack:
                return Failure(at_s, (int(draw() * self.nodes),))
            first = int(draw() * self.racks) * self.nodes_per_rack
            return Failure(at_s, range(first, min(first + self.nodes_per_rack, self.nodes)))

        return following


@dataclass(frozen=True, slots=True)
class Lemons:
    """Nodes of unequal quality: a `lemon_share` of them fails `times_worse` times as often.

    With `replaced_after`, a node that has failed so often gives its place to an ordinary one.
    """

    nodes: int
    mtbf_s: float
    """Of the job, with all lemons in it."""
    lemon_share: float
    times_worse: float
    replaced_after: int | None = None

    def __post_init__(self) -> None:
        checked("nodes", self.nodes, at_least=1)
        checked("mtbf_s", self.mtbf_s, above=0)
        checked("lemon_share", self.lemon_share, at_least=0, at_most=1)
        checked("times_worse", self.times_worse, at_least=1)
        if self.replaced_after is not None:
            checked("replaced_after", self.replaced_after, at_least=1)

    @property
    def lemons(self) -> int:
        """How many nodes are lemons; the first ones are."""
        return round(self.nodes * self.lemon_share)

    def begin(self, draw: Draw, /) -> Next:
        """See `Failures`."""
        weight = self.nodes + self.lemons * (self.times_worse - 1)
        ordinary_per_s = 1 / (self.mtbf_s * weight)
        lemons = list(range(self.lemons))
        ordinary = list(range(self.lemons, self.nodes))
        seen = dict.fromkeys(lemons, 0)

        def following(now_s: float) -> Failure:
            lemon_weight = len(lemons) * self.times_worse
            total = lemon_weight + len(ordinary)
            at_s = now_s + Exponential(1 / (ordinary_per_s * total)).quantile_s(draw())
            place = draw() * total
            if place >= lemon_weight:
                return Failure(at_s, (ordinary[int(place - lemon_weight)],))
            node = lemons[int(place / self.times_worse)]
            seen[node] += 1
            if seen[node] == self.replaced_after:
                lemons.remove(node)
                ordinary.append(node)
            return Failure(at_s, (node,))

        return following
