"""Reads a plan that people write: every mistake of the file in one message, a line for each.

The form of the file is decided here; what a plan means is `tape.py`'s.
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from faultinject import kinds, rulefile
from faultinject.tape import (
    LONGEST_S,
    MOST_FAULTS,
    Arrival,
    Choice,
    Exponential,
    Instants,
    Plan,
    Uniform,
    target,
)

SCHEMA = 1
MOST_RULES = 1_000
ARRIVALS = ("exponential", "uniform", "instants")

Positive = Annotated[float, Field(gt=0, le=LONGEST_S, allow_inf_nan=False)]
FromZero = Annotated[float, Field(ge=0, le=LONGEST_S, allow_inf_nan=False)]


def _target(text: str) -> str:
    target(text)
    return text


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Exponential(_Table):
    mtbf_s: Positive


class _Uniform(_Table):
    min_s: FromZero
    max_s: Positive


class _Arrival(_Table):
    exponential: _Exponential | None = None
    uniform: _Uniform | None = None
    instants: Annotated[list[FromZero], Field(min_length=1, max_length=MOST_FAULTS)] | None = None


class _Fault(_Table):
    kind: str
    weight: Positive = 1.0
    target: Annotated[str, AfterValidator(_target)] = "any rank"


class _Plan(_Table):
    schema_: Annotated[int, Field(alias="schema", ge=1, le=SCHEMA)] = SCHEMA
    seed: int = 0
    max_faults: Annotated[int, Field(ge=0, le=MOST_FAULTS)] | None = None
    start_delay_s: FromZero = 0.0
    arrival: _Arrival | None = None
    faults: Annotated[list[_Fault], Field(min_length=1)] | None = None
    storage: Annotated[list[dict[str, Any]], Field(max_length=MOST_RULES)] = []


_KEYS: Mapping[tuple[str, ...], type[_Table]] = {
    (): _Plan,
    ("arrival",): _Arrival,
    ("arrival", "exponential"): _Exponential,
    ("arrival", "uniform"): _Uniform,
    ("faults",): _Fault,
}


def read(path: Path) -> Plan:
    """The plan at `path`. Raises `ValueError` with a line for every mistake in it, or `OSError`."""
    try:
        return decode(path.read_bytes())
    except ValueError as error:
        lines = "\n".join(f"{path}: {line}" for line in str(error).splitlines())
        raise ValueError(lines) from None


def decode(raw: bytes) -> Plan:
    """The plan in `raw`, a TOML file. Raises `ValueError` with a line for every mistake in it."""
    try:
        table = tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not TOML: {error}") from None
    mistakes = []
    plan = None
    try:
        plan = _Plan.model_validate(table)
    except ValidationError as error:
        mistakes = [_line(mistake) for mistake in error.errors(include_url=False)]
    mistakes += _contradictions(table)
    if plan is None or mistakes:
        raise ValueError("\n".join(mistakes))
    return _meant(plan)


def _line(mistake: Any) -> str:
    """One of pydantic's findings, in our words."""
    place = [key for key in mistake["loc"] if isinstance(key, str)]
    where = "".join(f"[{k + 1}]" if isinstance(k, int) else f".{k}" for k in mistake["loc"])[1:]
    match mistake["type"]:
        case "missing":
            return f"{where} is missing"
        case "extra_forbidden":
            fields = _KEYS[tuple(place[:-1])].model_fields
            known = ", ".join(field.alias or name for name, field in fields.items())
            return f"unknown key {where!r}; known: {known}"
        case "value_error":
            return f"{where}: {mistake['ctx']['error']}"
        case _:
            rule = mistake["msg"].replace("Input should", "must").replace("List should", "must")
            return f"{where} = {_shown(mistake['input'])} {rule}"


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"{'list' if isinstance(value, list) else 'table'} of {len(value)}"
    return repr(value)[:40]


def _contradictions(table: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong between keys, whatever is wrong with any of them."""
    arrival = table.get("arrival")
    if "faults" in table or "storage" not in table:
        yield from (f"{key} is missing" for key in ("arrival", "faults") if key not in table)
    elif "arrival" in table:
        yield "faults is missing; arrival says when they come, and not when storage misbehaves"
    if isinstance(table.get("storage"), list):
        yield from _rules(table["storage"])
    if isinstance(arrival, dict):
        chosen = [key for key in ARRIVALS if key in arrival]
        if len(chosen) != 1:
            found = " and ".join(chosen) or "none"
            yield f"arrival: exactly one of {', '.join(ARRIVALS)} must be given; found {found}"
        if "max_faults" not in table and chosen and "instants" not in chosen:
            yield f"max_faults is missing; {chosen[0]} arrivals never end by themselves"
        yield from _order(arrival.get("uniform"))
    if isinstance(table.get("faults"), list):
        yield from _choices(table["faults"])


def _order(uniform: Any) -> Iterator[str]:
    if not isinstance(uniform, dict):
        return
    least, most = uniform.get("min_s"), uniform.get("max_s")
    if isinstance(least, int | float) and isinstance(most, int | float) and least >= most:
        yield (
            f"arrival.uniform: min_s = {least} must be below max_s = {most};"
            " for faults at known moments give instants"
        )


def _choices(faults: list[Any]) -> Iterator[str]:
    seen: set[tuple[str, str]] = set()
    for number, fault in enumerate(faults, start=1):
        kind = fault.get("kind") if isinstance(fault, dict) else None
        if not isinstance(kind, str):
            continue
        if kind not in kinds.names():
            known = ", ".join(kinds.names())
            yield f"faults[{number}]: unknown fault kind {kind[:40]!r}; known: {known}"
        aim = " ".join(str(fault.get("target", "any rank")).split())
        if (kind, aim) in seen:
            yield f"faults[{number}]: {kind} of {aim} came before; add up the weights"
        seen.add((kind, aim))


def _rules(tables: list[Any]) -> Iterator[str]:
    seen: set[str] = set()
    for number, rule in enumerate(tables, start=1):
        if not isinstance(rule, dict):
            continue
        try:
            words = rulefile.read(rule).words
        except ValueError as error:
            yield from (f"storage[{number}]: {line}" for line in str(error).splitlines())
            continue
        if words in seen:
            yield f"storage[{number}]: {words} came before; each kind, operation and name once"
        seen.add(words)


def _meant(plan: _Plan) -> Plan:
    arrival = Instants(()) if plan.arrival is None else _arrival(plan.arrival)
    most = plan.max_faults
    if most is None:
        most = len(arrival.at_s) if isinstance(arrival, Instants) else 0
    faults = plan.faults or []
    choices = tuple(Choice(fault.kind, fault.weight, target(fault.target)) for fault in faults)
    storage = tuple(map(rulefile.read, plan.storage))
    return Plan(arrival, choices, most, plan.seed, plan.start_delay_s, storage)


def _arrival(arrival: _Arrival) -> Arrival:
    if arrival.exponential is not None:
        return Exponential(arrival.exponential.mtbf_s)
    if arrival.uniform is not None:
        return Uniform(arrival.uniform.min_s, arrival.uniform.max_s)
    assert arrival.instants is not None, "one of the three was checked to be there"
    return Instants(tuple(arrival.instants))
