"""How many slots the copies in memory get: decided once, before training starts, from what is left of memory.

A rank that takes more than its container allows is killed, and takes the job with it; so a part of what
looks free is left alone, and less protection is said in a line.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_SPARED = 0.2
"""Of what is left: pages of files that count as free, and what the job has yet to allocate."""
_GB = 1e9
_UNTOUCHED_BYTES = 1 << 60
"""A limit that is none."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many slots each rank has, and what people should know of that, if anything."""

    slots: int
    line: str = ""


def decide(state_bytes: int, left_bytes: int) -> Room:
    """Two slots of a state of all ranks of a node, or one, or none, of memory of which so much is left."""
    usable_bytes = (1 - _SPARED) * left_bytes
    if 2 * state_bytes <= usable_bytes:
        return Room(2)
    sizes = f"the state takes {state_bytes / _GB:.3g} GB and {left_bytes / _GB:.3g} GB of memory are left"
    if state_bytes <= usable_bytes:
        return Room(
            1,
            f"copies in memory have one slot instead of two, for {sizes}: a rank that dies in the"
            " middle of a copy costs the work since the last save to storage",
        )
    return Room(0, f"no copies are kept in memory, for {sizes}: failures cost more work")


def left_bytes(read: Callable[[str], str] = lambda path: Path(path).read_text("ascii")) -> int:
    """What is left of memory on this machine, and in each control group around this process."""
    return min(_machine(read), *(_left(read, *files) for files in _groups(read)))


def _machine(read: Callable[[str], str]) -> int:
    for line in read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _UNTOUCHED_BYTES


def _groups(read: Callable[[str], str]) -> list[tuple[str, str, str]]:
    """Files with limit, usage and statistics of memory, of our own groups and those above them."""
    found = [_v2("/sys/fs/cgroup"), _v1("/sys/fs/cgroup/memory")]
    for line in _or_nothing(read, "/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        parts = [part for part in path.split("/") if part]
        for depth in range(1, len(parts) + 1):
            below = "/".join(parts[:depth])
            if not controllers:
                found.append(_v2(f"/sys/fs/cgroup/{below}"))
            elif "memory" in controllers.split(","):
                found.append(_v1(f"/sys/fs/cgroup/memory/{below}"))
    return found


def _v2(group: str) -> tuple[str, str, str]:
    return f"{group}/memory.max", f"{group}/memory.current", f"{group}/memory.stat"


def _v1(group: str) -> tuple[str, str, str]:
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
    limit, usage, stat = (f"{group}/{name}" for name in names)
    return limit, usage, stat


def _left(read: Callable[[str], str], limit: str, usage: str, stat: str) -> int:
    most, used = _or_nothing(read, limit).strip(), _or_nothing(read, usage).strip()
    if not most.isdecimal() or not used.isdecimal():
        return _UNTOUCHED_BYTES  # `max`, or no such group
    fields = dict(
        line.split(" ", 1) for line in _or_nothing(read, stat).splitlines() if " " in line
    )
    files = fields.get("total_inactive_file") or fields.get("inactive_file") or "0"
    return max(0, int(most) - int(used) + int(files))


def _or_nothing(read: Callable[[str], str], path: str) -> str:
    try:
        return read(path)
    except OSError:
        return ""
