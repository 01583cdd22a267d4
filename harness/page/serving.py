"""The page's files and its state, as an exporter serves them: all inline, nothing from anywhere else.

The page is text that never changes; what it shows comes from the state alone and is written into it as
text, never as HTML. Its content policy lets nothing else run.
"""

import base64
import hashlib
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs

from harness.page.window import WINDOWS_S

PAGE = "/"
STATE = "/state.json"
HTML = "text/html; charset=utf-8"
JSON = "application/json"


@cache
def page() -> bytes:
    """The page, whole."""
    folder = files(__package__)
    text = folder.joinpath("page.html").read_text("utf-8")
    for name in ("page.css", "page.js"):
        text = text.replace(f"/* {name} */", folder.joinpath(name).read_text("utf-8"))
    return text.encode()


@cache
def policy() -> str:
    """The content policy: the page's own style and script by their digests, and its own server."""
    style, script = (_digest(tag) for tag in ("style", "script"))
    return (
        f"default-src 'none'; style-src {style}; script-src {script}; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _digest(tag: str) -> str:
    match = re.search(rf"<{tag}>(.*?)</{tag}>", page().decode(), re.DOTALL)
    assert match is not None, tag
    digest = hashlib.sha256(match.group(1).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def window_of(query: str) -> int:
    """The window that a request asks for; what is none of ours is the usual one."""
    asked = parse_qs(query).get("window_s", [""])[0]
    return next((known for known in WINDOWS_S if str(known) == asked), WINDOWS_S[1])


def encoded(state: dict[str, Any]) -> bytes:
    """The document as it is sent."""
    return json.dumps(state, allow_nan=False, separators=(",", ":")).encode()
