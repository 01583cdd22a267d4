"""A small record of JSON that vouches for itself, since nothing else does: it holds its own checksum."""

import json
from typing import Any

import xxhash


def sealed(fields: dict[str, Any]) -> bytes:
    """The record's file."""
    return json.dumps({**fields, "checksum": _checksum(fields)}).encode() + b"\n"


def unsealed(data: bytes) -> dict[str, Any]:
    """The fields in `data`; one that was written by hand may have no checksum. Raises `ValueError`."""
    try:
        fields = json.loads(data)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - it is the file's mistake
    if fields.pop("checksum", None) not in (None, _checksum(fields)):
        raise ValueError("it does not have its own checksum")
    return fields


def _checksum(fields: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(fields, sort_keys=True).encode())
