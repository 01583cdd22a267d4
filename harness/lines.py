"""How an event becomes a line of the log and back. Only what is written here knows the log's form.

A file holds header lines `{"schema":1,…}` and entry lines
`{"t":at_ns,"a":attempt,"n":sequence,"e":"StepFinished","v":{…}}`, all of them plain JSON.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Union, get_type_hints

import msgspec

from harness.events import SCHEMA, Entry, Event, Header, Unknown, event_types

NONFINITE: Mapping[str, float] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""JSON has no such numbers; msgspec would write null, and a loss that blew up would read as none."""


_DEEPEST = 100
_MOST = 1 << 62
"""Bound of every number, for caches hold 64 bits."""
LATEST_NS = 3 << 60
"""Unix time that no header is beyond, in the year 2079: with what `_LONG` lets pass, below the bound."""
_LONG = b"0" * 18
"""Digits of a number that needs a second look; an uptime has as many after 31 years."""
_DIGITS = bytes(ord("0") if chr(byte).isdecimal() and byte < 128 else 32 for byte in range(256))

_Number = Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)]


class SchemaError(ValueError):
    """The log was written by a newer version than this one can read."""


class _Line(msgspec.Struct):
    """Either form of a line; `schema` tells which. What else a newer writer put in is ignored."""

    t: _Number = 0
    a: _Number = 0
    n: _Number = 0
    e: str = ""
    v: msgspec.Raw = msgspec.Raw(b"{}")
    schema: int | None = None


class _Known(msgspec.Struct):
    """An entry whose event is known; one subtype per event, told apart by "e"."""

    t: _Number
    a: _Number
    n: _Number
    v: Any


def _known_types() -> Any:
    kinds = [
        msgspec.defstruct(name, [("v", kind)], bases=(_Known,), tag_field="e", tag=name, gc=False)
        for name, kind in _TYPES.items()
    ]
    return Union[tuple(kinds)]  # noqa: UP007  # made from a list


_TYPES = event_types()
_FLOATS: Mapping[type[Event], tuple[str, ...]] = {
    kind: tuple(
        name for name, hint in get_type_hints(kind).items() if hint in (float, float | None)
    )
    for kind in _TYPES.values()
}
_known_decoder: msgspec.json.Decoder[_Known] = msgspec.json.Decoder(_known_types())
_decode_line = msgspec.json.Decoder(_Line).decode
_decode_header = msgspec.json.Decoder(Header).decode
_encode = msgspec.json.Encoder().encode


def encode(line: Entry | Header) -> bytes:
    """`line` as it stands in a file, with its newline."""
    if isinstance(line, Header):
        return _encode(line) + b"\n"
    event = line.event
    name = event.name if isinstance(event, Unknown) else type(event).__name__
    head = b'{"t":%d,"a":%d,"n":%d,"e":%b,"v":' % (
        line.at_ns,
        line.attempt,
        line.sequence,
        _encode(name),
    )
    return head + _encode_event(event) + b"}\n"


def decode(line: bytes, writer: str = "", offset_ns: int = 0) -> Entry | Header:
    """The header or entry in `line`; an event that this version does not know becomes `Unknown`.

    `offset_ns` moves an entry from its file's clock to another axis. Raises `SchemaError` for the
    header of a newer schema, and `ValueError` for anything that is no line of a log.
    """
    known = decode_known(line, writer, offset_ns)
    if known is not None and len(known) == 1:
        return known[0]
    try:
        parsed = _decode_line(line)
        if parsed.schema is not None:
            return _checked_header(line, parsed.schema)
        if not parsed.e:
            raise ValueError(f"{line[:80]!r} is neither a header nor an entry")
        event, at_ns = _event(parsed.e, parsed.v), parsed.t + offset_ns
        if abs(at_ns) > _MOST:
            raise ValueError(f"{line[:80]!r} happened at no time")
        return Entry(at_ns, parsed.a, parsed.n, event, writer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{line[:80]!r} is no line of a log: {error}") from error


def decode_known(block: bytes, writer: str, offset_ns: int) -> list[Entry] | None:
    """The entries of a block of whole lines, faster; None if any of them needs `decode`'s care."""
    if _LONG in block.translate(_DIGITS):
        return None
    try:
        lines = _known_decoder.decode_lines(block)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return [Entry(line.t + offset_ns, line.a, line.n, line.v, writer) for line in lines]


def _checked_header(line: bytes, schema: int) -> Header:
    if schema > SCHEMA:
        raise SchemaError(
            f"the log's schema {schema} is newer than {SCHEMA}, the newest that this version reads:"
            " read it with the version of resilience-harness that wrote it, or a later one"
        )
    header = _decode_header(line)
    if not (0 <= header.monotonic_ns <= LATEST_NS and 0 <= header.wall_ns <= LATEST_NS):
        raise ValueError(f"{line[:80]!r} is no header: its times are none of this world")
    return header


def _event(name: str, fields: msgspec.Raw) -> Event:
    """The event called `name`, with numbers spelled out or unknown; what does not fit is kept as it is."""
    raw = msgspec.json.decode(fields, type=dict[str, Any])
    if not _is_tame(raw, _DEEPEST):
        raise ValueError(f"{name[:40]!r} holds a number or a nesting that no writer makes")
    kind = _TYPES.get(name)
    if kind is None:
        return Unknown(name, raw)
    for field in _FLOATS[kind]:
        raw[field] = NONFINITE.get(str(raw.get(field)), raw.get(field))
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError:
        return Unknown(name, raw)


def _is_tame(value: Any, levels: int) -> bool:
    """True if a cache can hold `value`, whatever it means."""
    if isinstance(value, int):
        return abs(value) <= _MOST
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_tame(item, levels - 1) for item in inner)


def _encode_event(event: Event) -> bytes:
    if isinstance(event, Unknown):
        return _encode(event.fields)
    for field in _FLOATS[type(event)]:
        value = getattr(event, field)
        if value is not None and not math.isfinite(value):
            return _encode(_written_out(event))
    try:
        return _encode(event)
    except UnicodeEncodeError:
        return _encode(_written_out(event))


def _written_out(event: Event) -> dict[str, Any]:
    """`event` with its non-finite numbers spelled, and text that is no Unicode escaped."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    return {name: _spelled(value) for name, value in fields.items()}


def _spelled(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value
