"""What only the kernel can settle about processes: who is whose child, and what each is called."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
KILL_TIMEOUT_S = 5.0
"""Longest wait for one to die of SIGKILL: a device or file system may hold it for ever."""
DEATH_S = 0.01
"""From one look whether killed children are dead to the next: most take no longer."""
STOPPED = "T"
"""The `state` of a process that a signal has stopped; under a debugger it has another."""


class UnkillableError(Exception):
    """Processes of an attempt outlive SIGKILL, and no new attempt can be started beside them."""

    def __init__(self, attempt: int, left: Sequence[int], within_s: float) -> None:
        pids = ", ".join(map(str, left)) or "gone by now"
        super().__init__(
            f"processes of attempt {attempt} ({pids}) did not die within {within_s:g} s of SIGKILL:"
            " a device or file system holds them, and none start beside them; free it or restart the"
            " machine, and launch it again to go on"
        )


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, in whatever session it is."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def name_this_process(name: str) -> None:
    """Show `name` (15 bytes of it) in `ps` and `top`."""
    _prctl(PR_SET_NAME, name.encode())


def children(parent: int) -> list[int]:
    """Direct children of `parent`, dead ones that nobody waited for included."""
    return [pid for pid, its_parent in _parents() if its_parent == parent]


def kill_children(spared: Container[int], within_s: float) -> list[int]:
    """Kill every child of this process but those in `spared`, and the orphans that become ours.

    Gives those that have not died of it in time.
    """
    until_s = time.monotonic() + within_s
    while doomed := [pid for pid in children(os.getpid()) if pid not in spared]:
        if time.monotonic() >= until_s:
            break
        for pid in doomed:
            os.kill(pid, signal.SIGKILL)
        time.sleep(DEATH_S)
        for pid in doomed:
            os.waitpid(pid, os.WNOHANG)
    return doomed


def end(process: subprocess.Popen[Any]) -> None:
    """Kill it if it lives, and wait until it is gone, though not for ever."""
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(KILL_TIMEOUT_S)


def out_of_memory_kills() -> int:
    """How many processes the kernel has killed for memory so far, in our container if it counts."""
    cgroup = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip()
    for path in (Path(f"/sys/fs/cgroup{cgroup}/memory.events"), Path("/proc/vmstat")):
        with suppress(OSError):
            for line in path.read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    return 0


def count_threads() -> int:
    """Threads of this process, those of C libraries included."""
    return len(list(Path("/proc/self/task").iterdir()))


def holds_accelerator() -> bool:
    """True if this process has a GPU's device open, which a fork would not survive."""
    return any(
        target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri/")) for target in _open_files()
    )


def has_handler(pid: int, number: int) -> bool:
    """True if `pid` lives and catches signal `number`, so that sending it does no harm."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def state(pid: int) -> str:
    """The letter by which the kernel tells what `pid` does: `T` is stopped; empty if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    return chr(stat.rpartition(b")")[2].split()[0][0])


def tidies_up(pid: int) -> bool:
    """True for Python's resource tracker: it ends when its users have, and unlinks what they left.

    Whatever a killed process had in shared memory by name (semaphores of spawned loader workers, for
    one) is removed by this process or by nobody.
    """
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"multiprocessing.resource_tracker" in command


def _parents() -> Iterator[tuple[int, int]]:
    """Every process of the machine with its parent."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_bytes()
            except OSError:
                continue  # it ended while we looked
            # The name in brackets may hold anything, brackets included.
            yield int(folder.name), int(stat.rpartition(b")")[2].split()[1])


def _open_files() -> Iterator[str]:
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            yield str(descriptor.readlink())
        except OSError:
            continue  # the descriptor with which we listed


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int | bytes) -> None:
    if _libc().prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {argument!r}): {os.strerror(number)}")
