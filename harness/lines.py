"""How an event becomes a line of the log and back. Only what is written here knows the log's form.

A file holds header lines `{"schema":1,…}` and entry lines
`{"t":at_ns,"a":attempt,"n":sequence,"e":"StepFinished","v":{…}}`, all of them plain JSON.
"""

import math
from collections.abc import Mapping
from typing import Any, Union, get_type_hints

import msgspec

from harness.events import SCHEMA, Entry, Event, Header, Unknown, event_types

NONFINITE: Mapping[str, float] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""JSON has no such numbers; msgspec would write null, and a loss that blew up would read as none."""


class SchemaError(ValueError):
    """The log was written by a newer version than this one can read."""


class _Line(msgspec.Struct):
    """Either form of a line; `schema` tells which. What else a newer writer put in is ignored."""

    t: int = 0
    a: int = 0
    n: int = 0
    e: str = ""
    v: msgspec.Raw = msgspec.Raw(b"{}")
    schema: int | None = None


class _Known(msgspec.Struct):
    """An entry whose event is known; one subtype per event, told apart by "e"."""

    t: int
    a: int
    n: int
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
    try:
        known = _known_decoder.decode(line)
        return Entry(known.t + offset_ns, known.a, known.n, known.v, writer)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    try:
        parsed = _decode_line(line)
        if parsed.schema is not None:
            return _checked_header(line, parsed.schema)
        if not parsed.e:
            raise ValueError(f"{line[:80]!r} is neither a header nor an entry")
        event = _event(parsed.e, parsed.v)
        return Entry(parsed.t + offset_ns, parsed.a, parsed.n, event, writer)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"{line[:80]!r} is no line of a log: {error}") from error


def decode_known(block: bytes, writer: str, offset_ns: int) -> list[Entry] | None:
    """The entries of a block of whole lines, faster; None if any of them needs `decode`'s care."""
    try:
        lines = _known_decoder.decode_lines(block)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return [Entry(line.t + offset_ns, line.a, line.n, line.v, writer) for line in lines]


def _checked_header(line: bytes, schema: int) -> Header:
    if schema > SCHEMA:
        raise SchemaError(
            f"the log's schema {schema} is newer than {SCHEMA}, the newest that this version reads:"
            " read it with the version of resilience-harness that wrote it, or a later one"
        )
    return _decode_header(line)


def _event(name: str, fields: msgspec.Raw) -> Event:
    """The event called `name`, with numbers spelled out or unknown; what does not fit is kept as it is."""
    raw = msgspec.json.decode(fields, type=dict[str, Any])
    kind = _TYPES.get(name)
    if kind is None:
        return Unknown(name, raw)
    for field in _FLOATS[kind]:
        raw[field] = NONFINITE.get(str(raw.get(field)), raw.get(field))
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError:
        return Unknown(name, raw)


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
