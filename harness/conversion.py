"""The value of a setting, out of whatever a flag, a variable, a script or a file holds.

What a value may be is judged here, whichever way it came.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any

from harness.checkpoint import address
from harness.events import Tier
from harness.intervals import asked
from harness.quantities import losses
from harness.rundir import RunDir

MOST_THREADS = 1024
"""No machine has more cores for one rank, and OpenMP ends a process that asks for too many."""
MOST = (1 << 63) - 1
"""Bound of every number: random streams take no larger seed, and caches hold none."""
CHOICES: Mapping[str, Sequence[str]] = {
    "overlap": ("auto", "on", "off"),
    "on_nonfinite": ("fail", "skip", "report"),
    "on_spike": ("report", "rollback"),
    "on_replica_mismatch": ("report", "fail"),
    "on_audit_mismatch": ("fail", "report"),
}
"""What a setting that is one of a few words may be."""
_FORMS: Mapping[str, Callable[[str], object]] = {
    "memory_every": lambda text: asked.parse(text, Tier.MEMORY),
    "storage_every": lambda text: asked.parse(text, Tier.STORAGE),
    "target_losses": lambda text: text and losses(text),
}
"""What reads a setting that has a form of its own, and raises `ValueError` where it cannot."""
_SHOWN = 60
_LOOSE = re.compile("(file|local)://(?!/)")
"""A URL without an absolute path: the next launch would look for it somewhere else."""


def converted(key: str, default: Any, raw: Any) -> str | int | float | bool:
    """`raw` as the type of setting `key`, within its range. Raises `ValueError`."""
    if isinstance(default, bool):
        return _truth(key, raw)
    return _whole(key, raw) if isinstance(default, int) else _words(key, raw)


def _truth(key: str, raw: Any) -> bool:
    known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    word = str(raw).lower()
    if word not in known:
        raise ValueError(f"{key} = {_shown(raw)} is neither true nor false")
    return known[word]


def _whole(key: str, raw: Any) -> int:
    try:
        if isinstance(raw, bool):
            raise TypeError
        number = int(raw) if isinstance(raw, str) else index(raw)
    except (TypeError, ValueError):
        raise ValueError(f"{key} = {_shown(raw)} is not a whole number") from None
    least = 1 if key in ("keep", "shard_bytes", "storage_timeout_s") else 0
    if number < least:
        raise ValueError(f"{key} = {_shown(number)} is below {least}")
    most = MOST_THREADS if key == "threads" else MOST
    if number > most:
        raise ValueError(f"{key} = {_shown(number)} is above {most}")
    return number


def in_steps(key: str, raw: Any) -> str:
    """A number of steps between saves as an interval; 0 is none. Raises `ValueError`."""
    steps = _whole(key, raw)
    return f"{steps} steps" if steps else "off"


def _words(key: str, raw: Any) -> str:
    if key == "checkpoints":
        address.check_secrets(str(raw))
    if not isinstance(raw, str | int | os.PathLike) or isinstance(raw, bool) or "\0" in str(raw):
        raise ValueError(f"{key} = {_shown(raw)} is not a text")
    text = str(raw)
    if key == "resume" and text not in ("auto", "fresh") and not _is_step(text):
        raise ValueError(f"resume = {_shown(raw)} is neither 'auto', 'fresh' nor a step")
    if key in CHOICES and text not in CHOICES[key]:
        raise ValueError(f"{key} = {_shown(raw)} is none of {', '.join(CHOICES[key])}")
    if key in _FORMS:
        _check_form(key, text)
    place = text.rpartition("::")[2]
    if key == "checkpoints" and (place.startswith("://") or _LOOSE.match(place)):
        raise ValueError(f"checkpoints = {_shown(raw)} names no place: use file:///some/path")
    if key == "memory_dir" and text:
        return str(RunDir.at(text).path)
    if key == "checkpoints" and text:
        address.check(text)
        if not address.is_url(text):
            return str(RunDir.at(text).path)  # the next launch may be made elsewhere
    return text


def _check_form(key: str, text: str) -> None:
    try:
        _FORMS[key](text)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _is_step(text: str) -> bool:
    return text.isdecimal() and len(text) <= len(str(MOST)) and int(text) <= MOST


def _shown(raw: Any) -> str:
    """`raw` in a message that has to fit a screen."""
    try:
        text = repr(raw)
    except ValueError:  # Python does not write integers of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
