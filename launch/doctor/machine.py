"""What the kernel says of memory, limits, clock and ports, and which of its calls a launcher can make."""

import ctypes
import errno
import os
import resource
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

from harness.checkpoint.memory import Memory as Copy
from harness.metrics import USUAL_PORT
from launch.doctor.facts import Clock, Kernel, Limits, Memory, Ports

PR_GET_PDEATHSIG, PR_GET_CHILD_SUBREAPER = 2, 37
TIME_ERROR = 5
"""What adjtimex gives while the clock is not synchronised."""
_TIMEX_BYTES = 256
_NO_LIMIT = 1 << 60
"""What cgroups of the first version have where nothing is limited is a little less than 2⁶³."""


# ── memory ──────────────────────────────────────────────────────────────────────────────────────


def memory(root: Path = Path("/")) -> Memory:
    """Memory that is to be had, by the machine and by the container's limit."""
    available = _available(root)
    limit, used = _limit(root)
    if limit is not None:
        available = min(available, max(0, limit - used))
    shared = root / "dev/shm"
    free = shutil.disk_usage(shared).free if shared.is_dir() else None
    return Memory(available, limit, free)


def _available(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _limit(root: Path) -> tuple[int | None, int]:
    """The tightest limit of all cgroups that we are in, and what is in use of it."""
    found: list[tuple[int, int]] = []
    for folder, limit_name, used_name in _cgroups(root):
        limit, used = _number(folder / limit_name), _number(folder / used_name)
        if limit is not None and limit < _NO_LIMIT:
            found.append((limit, max(0, (used or 0) - _reclaimable(folder))))
    return min(found, key=lambda one: one[0] - one[1], default=(None, 0))


def _cgroups(root: Path) -> Iterator[tuple[Path, str, str]]:
    """Each cgroup of ours and those above it, of either version: folder, limit, use."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                top, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
            elif "memory" in controllers.split(","):
                top = root / "sys/fs/cgroup/memory"
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            else:
                continue
            own = top / path.strip("/")
            for folder in (own, *own.parents):
                if folder.is_relative_to(top):
                    yield folder, *names


def _reclaimable(folder: Path) -> int:
    """Of what is in use: files that the kernel would let go of."""
    with suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(count)
    return 0


def _number(path: Path) -> int | None:
    """What a file of the kernel holds; None for `max`, and where there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


# ── limits, clock and ports ─────────────────────────────────────────────────────────────────────


def limits() -> Limits:
    """What a process of ours may have."""
    return Limits(
        files=_soft(resource.RLIMIT_NOFILE),
        processes_left=_processes_left(),
        locked_bytes=_soft(resource.RLIMIT_MEMLOCK),
    )


def _soft(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _processes_left() -> int | None:
    """How many threads more; root is not limited, but its container may be."""
    left: list[int] = []
    soft = _soft(resource.RLIMIT_NPROC)
    if soft is not None and os.geteuid() != 0:
        left.append(max(0, soft - _threads_of_user()))
    for folder, *_ in _cgroups(Path("/")):
        most, now = _number(folder / "pids.max"), _number(folder / "pids.current")
        if most is not None:
            left.append(max(0, most - (now or 0)))
    return min(left, default=None)


def _threads_of_user() -> int:
    count = 0
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdecimal() and folder.stat().st_uid == os.getuid():
                count += len(list((folder / "task").iterdir()))
    return count


def clock() -> Clock:
    """Whether the kernel's clock is kept right, and whether it names its boot."""
    with suppress(OSError, AttributeError):
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
        synchronised = None if state < 0 else state != TIME_ERROR
        return Clock(synchronised, Path("/proc/sys/kernel/random/boot_id").is_file())
    return Clock(None, Path("/proc/sys/kernel/random/boot_id").is_file())


def ports(metrics_port: int | None) -> Ports:
    """Whether the port of the metrics is free, and whether any is."""
    try:
        _listen(0)
    except OSError as error:
        return Ports(False, f"no port of 127.0.0.1 can be had: {error.strerror}")
    try:
        _listen(USUAL_PORT if metrics_port is None else metrics_port)
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        return Ports(is_taken, refused="" if is_taken else str(error.strerror))
    return Ports(False)


def _listen(port: int) -> None:
    with closing(socket.socket()) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()


# ── calls that a launcher makes ─────────────────────────────────────────────────────────────────


def kernel() -> Kernel:
    """Which calls are refused; each is made, and changes nothing."""
    return Kernel(
        missing=tuple(name for name, call in _CALLS.items() if _refused(call)),
        nvidia_devices=sum(one.name[6:].isdecimal() for one in Path("/dev").glob("nvidia*")),
    )


def _refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except (OSError, AttributeError):
        return True
    return False


def _pidfd() -> None:
    os.close(os.pidfd_open(os.getpid()))


def _memfd() -> None:
    Copy(1)


def _prctl() -> None:
    libc, value = ctypes.CDLL(None, use_errno=True), ctypes.c_int()
    for option in (PR_GET_PDEATHSIG, PR_GET_CHILD_SUBREAPER):
        if libc.prctl(option, ctypes.byref(value), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def _descriptors() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        socket.send_fds(ours, [b"x"], [ours.fileno()])
        _, received, _, _ = socket.recv_fds(theirs, 1, 1)
        for descriptor in received:
            os.close(descriptor)


_CALLS = {
    "pidfd_open": _pidfd,
    "memfd_create with seals": _memfd,
    "prctl for the death of a parent": _prctl,
    "descriptors over a socket": _descriptors,
}
