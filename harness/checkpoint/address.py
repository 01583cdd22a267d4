"""What the URL of a storage may be, and the file system that it names. Only URLs are judged here.

Options and credentials are fsspec's own configuration and never part of a URL, which is written into
logs; one that has them is refused without being repeated.
"""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import fsspec

LOCAL = ("", "file", "local")
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfs", "az": "abfs"}  # fmt: skip
"""Protocols of object stores that are known to show no object before it is whole, and what to install."""

_SECRET = re.compile(
    r"//[^/@]*:[^/@]*@|[?&][^=&]*(sig|token|key|secret|password|credential)[^=&]*=", re.IGNORECASE
)
_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SLASHES = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/?(?!/)")


class StoreError(ValueError):
    """The storage is not one that this run can use."""


def protocol_of(url: str) -> str:
    """The protocol of the storage itself, below all that is wrapped around it; "" for a path."""
    match = _PROTOCOL.match(url.rsplit("::", 1)[-1])
    return "" if match is None else match.group(1)


def is_url(text: str) -> bool:
    """True for a URL; all else is a path of this machine."""
    return "::" in text or _PROTOCOL.match(text) is not None


def check(url: str) -> None:
    """Raise `StoreError` for what cannot be the URL or path of a run's checkpoints."""
    if _SECRET.search(url):
        raise StoreError(
            "the URL of checkpoints has credentials in it, and URLs are written down: take them out"
            " (they are not repeated here) and give them by fsspec's configuration"
        )
    protocol, innermost = protocol_of(url), url.rsplit("::", 1)[-1]
    near = _SLASHES.match(innermost)
    if not protocol and near is not None and near.group(1) in EXTRAS:
        raise StoreError(
            f"checkpoints at {url!r}: it is neither a URL nor a path; a URL has two slashes, as in"
            f" {near.group(1)}://bucket/run"
        )
    if protocol == "memory":
        raise StoreError(
            f"checkpoints at {url!r}: memory:// lives in one process alone, so no other rank and no"
            " later attempt would see it; use file:///some/path"
        )
    if protocol not in LOCAL and protocol not in EXTRAS:
        known = ", ".join(f"{name}://" for name in ("file", *EXTRAS))
        raise StoreError(
            f"checkpoints at {url!r}: {protocol}:// is not known to keep an object unseen until it"
            f" is whole; known: {known}"
        )
    if protocol in EXTRAS and not innermost.split("://", 1)[1].strip("/"):
        raise StoreError(
            f"checkpoints at {url!r}: it names no bucket, as {protocol}://bucket/run does"
        )


def locate(url: str) -> "tuple[fsspec.AbstractFileSystem, str]":
    """The file system and the path that `url` names. Raises `StoreError`."""
    from fsspec.core import url_to_fs

    check(url)
    protocol = protocol_of(url)
    # Told to the storage itself, below what is wrapped around it: a listing must never be an old one.
    options = {protocol: {"use_listings_cache": False}} if protocol in EXTRAS else {}
    try:
        files, root = url_to_fs(url, **options)
    except ImportError as error:
        extra = EXTRAS.get(protocol, protocol)
        raise StoreError(
            f"checkpoints at {url!r} need a package that is not installed"
            f" (pip install 'resilience-harness[{extra}]'): {error}"
        ) from error
    except (ValueError, OSError) as error:
        raise StoreError(f"checkpoints at {url!r} cannot be opened: {error}") from error
    return files, str(root).rstrip("/") or "/"
