"""Metric names, both ways: what is asked for is exported, and what is exported is asked for or left out on purpose."""

import re
from collections.abc import Mapping, Sequence

from dashboards.checks.asked import queries, variables
from harness.metrics import FAMILIES, PREFIX, Kind

UNUSED: Mapping[str, str] = {
    f"{PREFIX}gradient_audits_total": "audits are off unless a loop asks for them",
    f"{PREFIX}gradient_audit_mismatches_total": "likewise; the report tells",
}
"""Exported families that no panel shows, and why."""
AWAITED: frozenset[str] = frozenset()
"""Families that panels are there for and nothing feeds yet: their panels are empty until then."""

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
    unknown = sorted(
        name for name, base in asked.items() if base not in FAMILIES and base not in AWAITED
    )
    unseen = sorted(set(FAMILIES) - set(asked.values()) - set(UNUSED))
    needless = sorted(set(UNUSED) & set(asked.values()) | set(UNUSED) - set(FAMILIES))
    return [
        *(f"{name} is asked for and not exported" for name in unknown),
        *(f"{name} is exported; show it, or say in UNUSED why not" for name in unseen),
        *(f"{name} stands in UNUSED and is shown or not exported" for name in needless),
    ]
