"""All findings about a machine, in the order in which they are told: facts in, findings out."""

from collections.abc import Callable, Sequence

from launch.doctor import compute, detection, resources
from launch.doctor.facts import Asked, Facts, Finding, Level

CHECKS: Sequence[Callable[[Facts, Asked], Finding]] = (
    compute.torch,
    compute.gpus,
    compute.start,
    compute.store,
    compute.backend,
    detection.detection,
    resources.memory,
    resources.shared_memory,
    resources.disk,
    resources.storage,
    resources.limits,
    resources.ports,
    resources.clock,
    compute.spy,
)


def findings(facts: Facts, asked: Asked) -> list[Finding]:
    """One for each check."""
    return [check(facts, asked) for check in CHECKS]


def worst(found: Sequence[Finding]) -> Level:
    """Of all."""
    levels = [one.level for one in found]
    return max(levels, key=list(Level).index, default=Level.OK)
