"""Metric names, both ways: what is asked for is exported, and what is exported is asked for or left out on purpose."""

import re
from collections.abc import Mapping, Sequence

from dashboards.checks.asked import queries, variables
from harness.metrics import FAMILIES, PREFIX, Kind

UNUSED: Mapping[str, str] = {}
"""Exported families that no panel shows, and why."""
_NAME = re.compile(rf"\b{PREFIX}[a-z_]+\b")
_PARTS = re.compile(r"_(?:bucket|sum|count)$")


def used() -> Mapping[str, str]:
    """Every name in a query, by the name of its family where that is a histogram."""
    written = [asked.expr for asked in queries()] + list(variables())
    return {name: family(name) for expr in written for name in _NAME.findall(expr)}


def family(name: str) -> str:
    """The family to which a series belongs."""
    base = _PARTS.sub("", name)
    found = FAMILIES.get(base)
    return base if found is not None and found.kind is Kind.HISTOGRAM else name


def mistakes() -> Sequence[str]:
    """What does not match, in words."""
    asked = used()
    unknown = sorted(name for name, base in asked.items() if base not in FAMILIES)
    unseen = sorted(set(FAMILIES) - set(asked.values()) - set(UNUSED))
    needless = sorted(set(UNUSED) & set(asked.values()) | set(UNUSED) - set(FAMILIES))
    return [
        *(f"{name} is asked for and not exported" for name in unknown),
        *(f"{name} is exported; show it, or say in UNUSED why not" for name in unseen),
        *(f"{name} stands in UNUSED and is shown or not exported" for name in needless),
    ]
