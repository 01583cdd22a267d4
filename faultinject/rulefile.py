"""A rule of faulty storage as people write it in `[[storage]]`, and as a tape holds it: the same table."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, assert_never

from faultinject.rules import SUITS, Chance, From, Kind, Nth, Operation, Rule, When

KEYS = (
    "after_bytes",
    "from_nth",
    "kind",
    "most",
    "name",
    "nth",
    "operations",
    "probability",
    "seconds",
)
HANG_S = 3600.0
LONGEST_S = 1e6
MOST = 1 << 60
_TIMED = (Kind.HANG, Kind.LATENCY, Kind.STALE)


def read(values: Mapping[str, Any]) -> Rule:
    """The rule that a table means. Raises `ValueError` with a line for every mistake in it."""
    mistakes = [*_unknown(values), *_misfits(values)]
    if mistakes:
        raise ValueError("\n".join(mistakes))
    kind = Kind(values["kind"])
    return Rule(
        kind=kind,
        operations=tuple(map(Operation, values.get("operations", SUITS[kind]))),
        name=values.get("name", "*"),
        when=_when(values),
        most=values.get("most"),
        after_bytes=values.get("after_bytes", 0),
        seconds=float(values.get("seconds", HANG_S if kind is Kind.HANG else 0.0)),
    )


def table(rule: Rule) -> dict[str, Any]:
    """The table that means `rule`; `read` gives it back."""
    made: dict[str, Any] = {
        "kind": str(rule.kind),
        "operations": [*map(str, rule.operations)],
        "name": rule.name,
    }
    match rule.when:
        case Nth(number):
            made["nth"] = number
        case From(number):
            made["from_nth"] = number
        case Chance(probability):
            made["probability"] = probability
        case _:
            assert_never(rule.when)
    if rule.most is not None:
        made["most"] = rule.most
    if rule.kind is Kind.ENOSPC:
        made["after_bytes"] = rule.after_bytes
    if rule.kind in _TIMED:
        made["seconds"] = rule.seconds
    return made


def _when(values: Mapping[str, Any]) -> When:
    if "nth" in values:
        return Nth(values["nth"])
    if "probability" in values:
        return Chance(float(values["probability"]))
    return From(values.get("from_nth", 1))


def _unknown(values: Mapping[str, Any]) -> Iterator[str]:
    """Keys that there are not, and values that no rule can have, whatever its kind."""
    for key in values.keys() - set(KEYS):
        yield f"unknown key {key[:40]!r}; known: {', '.join(KEYS)}"
    for key, (holds, rule) in _RULES.items():
        if key in values and not holds(values[key]):
            yield f"{key} = {repr(values[key])[:40]} {rule}"
    if values.get("kind") not in list(Kind):
        found = (
            f"unknown kind {repr(values['kind'])[:40]}" if "kind" in values else "kind is missing"
        )
        yield f"{found}; known: {', '.join(sorted(Kind))}"


def _misfits(values: Mapping[str, Any]) -> Iterator[str]:
    """What does not go together."""
    chosen = [key for key in ("nth", "from_nth", "probability") if key in values]
    if len(chosen) > 1:
        yield f"{' and '.join(chosen)} exclude each other"
    if values.get("kind") not in list(Kind):
        return
    kind = Kind(values["kind"])
    if isinstance(values.get("operations"), list):
        for operation in values["operations"]:
            if operation not in SUITS[kind]:
                known = ", ".join(SUITS[kind])
                yield f"{kind} cannot happen to {repr(operation)[:40]}; known for it: {known}"
    if ("after_bytes" in values) != (kind is Kind.ENOSPC):
        yield f"after_bytes {'is missing' if kind is Kind.ENOSPC else f'means nothing to {kind}'}"
    if "seconds" in values and kind not in _TIMED:
        yield f"seconds means nothing to {kind}; it is for {', '.join(_TIMED)}"
    if "seconds" not in values and kind in (Kind.LATENCY, Kind.STALE):
        yield f"seconds is missing; {kind} needs it"


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MOST


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


_RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "nth": (_is_count, "is not a count from 1 up"),
    "from_nth": (_is_count, "is not a count from 1 up"),
    "most": (_is_count, "is not a count from 1 up"),
    "after_bytes": (lambda it: type(it) is int and 0 <= it <= MOST, "is not a size in bytes"),
    "probability": (lambda it: _is_number(it) and 0 < it <= 1, "is not above 0 and at most 1"),
    "seconds": (lambda it: _is_number(it) and 0 < it <= LONGEST_S, "is not a time above 0"),
    "name": (
        lambda it: isinstance(it, str) and it != "",
        "is not a pattern such as '*/commit.json'",
    ),
    "operations": (lambda it: isinstance(it, list) and bool(it), "is not a list of operations"),
}
