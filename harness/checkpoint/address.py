"""What the URL of a storage may be; judged here alone, by its text, before anything is opened.

Options and credentials are fsspec's own configuration and never part of a URL, which is written into
logs; one that has them is refused without being repeated.
"""

import re
from pathlib import Path

FAULTY = "chaos::"
"""Wrapped around a storage by a run that is to be broken; what it keeps is kept beneath."""
LOCAL = ("", "file", "local")
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfs", "az": "abfs"}  # fmt: skip
"""Protocols of object stores that were tried out on real ones, and what to install for each."""

_SECRET = re.compile(
    r"//[^/@]*:[^/@]*@"  # user:password@host
    r"|^[^/]*:/?[^/@:]+:[^/@]*@"  # the same, with slashes left out
    r"|://[^/\[]*:(?!\d*(?:[/?#]|$))"  # what stands after a host is no port: a key that has a slash in it
    r"|[?&][^=&]*(sig|token|key|secret|passw|pwd|credential)[^=&]*=",
    re.IGNORECASE,
)
_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SLASHES = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/?)(?!/)")


class StoreError(ValueError):
    """The storage is not one that this run can use."""


def protocol_of(url: str) -> str:
    """The protocol of the storage itself, below all that is wrapped around it; "" for a path."""
    match = _PROTOCOL.match(url.rsplit("::", 1)[-1])
    return "" if match is None else match.group(1)


def is_url(text: str) -> bool:
    """True for a URL; all else is a path of this machine."""
    return "::" in text or _PROTOCOL.match(text) is not None


def without_faults(url: str) -> str:
    """The storage beneath all faults: what a run left is looked at and copied as it is."""
    while url.startswith(FAULTY):
        url = url.removeprefix(FAULTY)
    return url


def spelled_out(url: str) -> str:
    """`url` with its protocol, where something is wrapped around a mere path of this machine."""
    *wrapped, innermost = url.split("::")
    if not wrapped or not innermost or protocol_of(url):
        return url
    return "::".join([*wrapped, f"file://{Path(innermost).absolute()}"])


def check_secrets(url: str) -> None:
    """Raise `StoreError` for what has credentials in it; to be asked before anything repeats it."""
    if _SECRET.search(url):
        raise StoreError(
            "the URL of checkpoints has credentials in it, and URLs are written down: take them out"
            " (they are not repeated here) and give them by fsspec's configuration"
        )


def check(url: str) -> None:
    """Raise `StoreError` for what cannot be the URL or path of a run's checkpoints."""
    check_secrets(url)
    protocol, innermost = protocol_of(url), url.rsplit("::", 1)[-1]
    near = _SLASHES.match(innermost)
    if not protocol and near is not None and (near.group(2) or near.group(1) in EXTRAS):
        raise StoreError(
            f"checkpoints at {url!r}: it is neither a URL nor a path; a URL has two slashes, as in"
            f" {near.group(1)}://bucket/run, and a path of that name is ./{innermost}"
        )
    if protocol == "memory":
        raise StoreError(
            f"checkpoints at {url!r}: memory:// lives in one process alone, so no other rank and no"
            " later attempt would see it; use file:///some/path"
        )
    if protocol not in LOCAL and not innermost.split("://", 1)[1].strip("/"):
        what = "bucket" if protocol in EXTRAS else "place"
        raise StoreError(
            f"checkpoints at {url!r}: it names no {what}, as {protocol}://{what}/run does"
        )
