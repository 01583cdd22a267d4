"""Who may ask an exporter, and over what: TLS and passwords, from one TOML file.

[tls]
certificate = "server.pem"   # paths are relative to this file
key = "server.key"
client_ca = "clients.pem"    # optional: only those with a certificate of it

[users]
prometheus = "its password"
"""

import base64
import hmac
import ssl
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TLS = ("certificate", "key", "client_ca")


@dataclass(frozen=True, slots=True)
class Access:
    """What whoever asks has to bring; nothing by default."""

    tls: ssl.SSLContext | None = None
    users: Mapping[str, str] | None = None
    """Passwords by name; None where nobody is asked for one."""

    def admits(self, authorization: str | None) -> bool:
        """Whether the header `Authorization` names a user and the right password."""
        if self.users is None:
            return True
        name, password = _credentials(authorization or "")
        known = self.users.get(name)
        # A name that nobody has takes as long as a wrong password.
        right = hmac.compare_digest((known or "").encode(), password.encode())
        return right and known is not None


def _credentials(authorization: str) -> tuple[str, str]:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        name, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError:  # no base64, no ASCII, no UTF-8 within
        return "", ""
    return name, password


def read(path: Path) -> Access:
    """What the file asks for. Raises `ValueError` with a line for each mistake in it."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))
        is_open = bool(path.stat().st_mode & 0o077)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as rules of access: {error}") from error
    users, tls = table.get("users"), table.get("tls")
    mistakes = [f"unknown table [{name}]; known: [tls], [users]" for name in table.keys() - _KNOWN]
    mistakes += _mistakes_in_users(users, is_open) + _mistakes_in_tls(tls)
    if not table:
        mistakes.append("it asks for nothing: give it a table [tls] or [users]")
    if mistakes:
        raise ValueError("\n".join(f"{path}: {mistake}" for mistake in mistakes))
    return Access(None if tls is None else _context(path, tls), users)


_KNOWN = {"tls", "users"}


def _mistakes_in_users(users: Any, is_open: bool) -> list[str]:
    if users is None:
        return []
    if not isinstance(users, dict) or not users:
        return ["[users] names nobody: name = 'password'"]
    found = [
        f"{name!r} has no password or cannot be a name: name = 'password', no ':' in the name"
        for name, password in users.items()
        if not isinstance(password, str) or not password or ":" in name or not name
    ]
    if is_open:
        found.append("it holds passwords and others than its owner may read it: chmod 600")
    return found


def _mistakes_in_tls(tls: Any) -> list[str]:
    if tls is None:
        return []
    if not isinstance(tls, dict):
        return ["tls is a table: [tls]"]
    missing = [name for name in _TLS[:2] if not isinstance(tls.get(name), str)]
    unknown = sorted(tls.keys() - set(_TLS))
    return [
        *(f"[tls] has no {name}: the path of a PEM file" for name in missing),
        *(f"[tls] has an unknown {name}; known: {', '.join(_TLS)}" for name in unknown),
    ]


def _context(path: Path, tls: Mapping[str, str]) -> ssl.SSLContext:
    files = {name: path.parent / value for name, value in tls.items()}
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files["certificate"], files["key"])
        if "client_ca" in files:
            context.load_verify_locations(files["client_ca"])
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # of which ssl.SSLError is one
        named = ", ".join(str(file) for file in files.values())
        raise ValueError(f"{path}: TLS cannot be set up with {named}: {error}") from error
    return context
