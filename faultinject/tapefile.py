"""The tape as a file: a header, a line of JSON for each fault by instant, one for each rule of the storage.

What cannot be read is refused with the number of its line; a tape that was cut is refused whole.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, assert_never

from faultinject import rulefile
from faultinject.rules import Rule
from faultinject.tape import LONGEST_S, MOST_FAULTS, AnyRank, Fault, Rank, Tape
from faultinject.tape import target as target_of
from harness.replace import replace_file

SCHEMA = 2
"""Written where a tape has rules for the storage; 1 where it has none, as it was before there were any."""
LATEST_S = LONGEST_S * (MOST_FAULTS + 1)
"""Beyond this no plan can put a fault."""


def encode(tape: Tape) -> str:
    """The tape as lines of JSON: a header, then one line for each fault."""
    header = {
        "schema": SCHEMA if tape.storage else 1,
        "seed": tape.seed,
        "plan": tape.plan,
        "world_size": tape.world_size,
        "faults": len(tape.faults),
        **({"storage": len(tape.storage)} if tape.storage else {}),
    }
    lines = [
        {"id": fault.id, "at_s": fault.at_s, "kind": fault.kind, "target": str(fault.target)}
        for fault in tape.faults
    ]
    rules = [rulefile.table(rule) for rule in tape.storage]
    return "".join(json.dumps(line) + "\n" for line in [header, *lines, *rules])


def write(path: Path, tape: Tape) -> None:
    """Replace the file at `path` by `tape`, whole or not at all."""
    replace_file(path, encode(tape).encode(), durable=True)


def read(path: Path) -> Tape:
    """The tape at `path`. Raises `ValueError` that names the file and the line."""
    try:
        return decode(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def decode(raw: bytes) -> Tape:
    """The tape in `raw`, of this schema or an older one. Raises `ValueError` that names the line."""
    lines = raw.splitlines()
    if not lines:
        raise ValueError("line 1: empty; a tape begins with a header")
    header = _object(1, lines[0])
    schema = _whole(1, header, "schema", least=1)
    if schema > SCHEMA:
        raise ValueError(
            f"line 1: schema {schema} is newer than {SCHEMA}: read it with a later version"
        )
    world_size = _whole(1, header, "world_size", least=1)
    count = _whole(1, header, "faults", least=0)
    rules = _whole(1, header, "storage", least=0) if "storage" in header else 0
    faults = _faults(lines[1 : len(lines) - rules], world_size)
    if len(lines) - 1 != count + rules:
        raise ValueError(
            f"line {len(lines)}: the header promises {count} faults and here are {len(faults)};"
            " the tape was cut or edited: compile it again"
        )
    return Tape(
        _whole(1, header, "seed", None),
        _text(1, header, "plan"),
        world_size,
        faults,
        tuple(_rule(number, lines[number - 1]) for number in range(count + 2, len(lines) + 1)),
    )


def _rule(number: int, line: bytes) -> Rule:
    try:
        return rulefile.read(_object(number, line))
    except ValueError as error:
        first = str(error).splitlines()[0].removeprefix(f"line {number}: ")
        raise ValueError(f"line {number}: {first}") from None


def _faults(lines: Sequence[bytes], world_size: int) -> tuple[Fault, ...]:
    faults: list[Fault] = []
    ids: set[str] = set()
    for number, line in enumerate(lines, start=2):
        fault = _fault(number, _object(number, line))
        if fault.id in ids:
            raise ValueError(f"line {number}: id {fault.id!r} came before; each fault has its own")
        if faults and fault.at_s < faults[-1].at_s:
            raise ValueError(
                f"line {number}: at_s = {fault.at_s} comes after {faults[-1].at_s}; sort by at_s"
            )
        if fault.target.number >= world_size:
            rule = f"does not exist at {world_size} ranks"
            raise ValueError(f"line {number}: '{fault.target}' {rule}")
        ids.add(fault.id)
        faults.append(fault)
    return tuple(faults)


def _fault(number: int, values: dict[str, Any]) -> Fault:
    at_s = values.get("at_s")
    if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not 0 <= at_s <= LATEST_S:
        rule = f"is not a number of seconds from 0 to {LATEST_S:g}"
        raise ValueError(f"line {number}: at_s = {_shown(at_s)} {rule}")
    try:
        aim = target_of(_text(number, values, "target"))
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None
    match aim:
        case Rank():
            id_, kind = _text(number, values, "id"), _text(number, values, "kind")
            return Fault(id_, float(at_s), kind, aim)
        case AnyRank():
            raise ValueError(f"line {number}: '{aim}' must be drawn: let `compile` make the tape")
    assert_never(aim)


def _object(number: int, line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number}: not JSON ({error})") from None
    if isinstance(values, dict):
        return values
    raise ValueError(f"line {number}: {_shown(values)} is not a JSON object")


def _whole(number: int, values: dict[str, Any], key: str, least: int | None) -> int:
    value = values.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        wrong = "is not a whole number"
    elif least is not None and value < least:
        wrong = f"is below {least}"
    else:
        return value
    raise ValueError(f"line {number}: {key} = {_shown(value)} {wrong}")


def _text(number: int, values: dict[str, Any], key: str) -> str:
    value = values.get(key)
    if isinstance(value, str) and value:
        return value
    raise ValueError(f"line {number}: {key} = {_shown(value)} is not a text")


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return repr(value)[:60]
