"""What can become of a file: bits flip, ends are cut, lines move, values are none that a writer makes."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

VALUES: Sequence[Any] = (
    *(None, True, False, 0, -1, 1, 0.5, 1e308, -1e308, "", "x" * 5000, "NaN", "-Infinity"),
    *(2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 10**15, 10**18, 10**30, 10**400),
    *("\ud800", "\0", "\n", "[red]", "\x1b[31m", "../../x", "/dev/zero"),
    *([], {}, [1], {"a": 1}, [[]], [None]),
)
DEEP = b"[" * 100_000
WILD: Sequence[bytes] = (
    DEEP,
    b'{"a":' * 900 + b"1" + b"}" * 900,
    b'{"schema":1,"e":"New","v":' + DEEP[:990] + b"]" * 990 + b"}",
    b'{"schema":' + b"9" * 100_000 + b"}",
    b'{"schema":99}',
    b"1e999999999",
    b"\0" * 5000,
    b"\xff\xfe{\0}\0",
)


def spoilt(data: bytes, chance: random.Random) -> bytes:
    """`data` after one to three things happened to it."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        data = chance.choice(_WAYS)(data, chance)
    return data


def flipped(data: bytes, chance: random.Random) -> bytes:
    """One bit is another."""
    if not data:
        return data
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _torn(data: bytes, chance: random.Random) -> bytes:
    """Something in the middle is gone."""
    first, second = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return data[:first] + data[second:]


def _of_lines(change: Callable[[list[bytes], random.Random], None]) -> Any:
    def changed(data: bytes, chance: random.Random) -> bytes:
        lines = data.splitlines(keepends=True)
        if lines:
            change(lines, chance)
        return b"".join(lines)

    return changed


def _repeat(lines: list[bytes], chance: random.Random) -> None:
    lines.insert(chance.randrange(len(lines) + 1), chance.choice(lines))


def _shuffle(lines: list[bytes], chance: random.Random) -> None:
    chance.shuffle(lines)


def _end_like_windows(lines: list[bytes], chance: random.Random) -> None:
    lines[:] = [line.rstrip(b"\n") + b"\r\n" for line in lines]


def _insert(lines: list[bytes], chance: random.Random) -> None:
    garbage = (*WILD, bytes(chance.randrange(256) for _ in range(chance.randrange(50))))
    lines.insert(chance.randrange(len(lines) + 1), chance.choice(garbage) + b"\n")


def _replace_value(lines: list[bytes], chance: random.Random) -> None:
    """A line of JSON holds another value, or one less, or one more."""
    place = chance.randrange(len(lines))
    try:
        lines[place] = json.dumps(_changed(json.loads(lines[place]), chance)).encode() + b"\n"
    except (ValueError, RecursionError):
        return


def _replace_value_of_all(data: bytes, chance: random.Random) -> bytes:
    """The same where the whole file is one value."""
    try:
        return json.dumps(_changed(json.loads(data), chance)).encode()
    except (ValueError, RecursionError):
        return data


def _changed(tree: Any, chance: random.Random) -> Any:
    inner = [node for node in _nodes(tree) if node]
    if not inner:
        return chance.choice(VALUES)
    node = chance.choice(inner)
    key = chance.choice(list(node)) if isinstance(node, dict) else chance.randrange(len(node))
    if chance.random() < 0.15:
        del node[key]
    elif chance.random() < 0.15 and isinstance(node, dict):
        node["unknown"] = chance.choice(VALUES)
    else:
        node[key] = chance.choice(VALUES)
    return tree


def _nodes(tree: Any) -> list[Any]:
    """Every object and list in `tree`."""
    if not isinstance(tree, dict | list):
        return []
    items = tree.values() if isinstance(tree, dict) else tree
    return [tree, *(node for item in items for node in _nodes(item))]


_WAYS = (
    *(flipped, _cut, _torn, _replace_value_of_all, _replace_value_of_all),
    *map(_of_lines, (_repeat, _shuffle, _end_like_windows, _insert)),
    *[_of_lines(_replace_value)] * 4,
)
