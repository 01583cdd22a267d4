"""Waiting for what other threads and processes do: as long as it takes, and not for ever."""

import time
from collections.abc import Callable
from typing import Any


def until(
    holds: Callable[[], Any], what: str, timeout_s: float = 60.0, look_s: float = 0.005
) -> Any:
    """What `holds` gives once it is true; fails after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < deadline_s, f"{what}: not within {timeout_s:g} s"
        time.sleep(look_s)
    return found
