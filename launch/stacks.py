"""What every rank was doing when its attempt failed, written by the ranks themselves.

A stopped rank answers nobody, so the wait for answers is short; a restart does not wait for a report.
What a stack says of who waits for whom is read here and nowhere else.
"""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path

from launch import processes
from launch.rank import STACKS_SIGNAL
from launch.spawner import Spawner

PATIENCE_S = 0.1
HANG_PATIENCE_S = 0.5
"""How long stacks are waited for that tell who hangs: seconds have passed already."""
LOOK_S = 0.001
GONE = ("", "Z", "X")
"""States of a process that does nothing any more."""
SPY_S = 2.0
"""Longest that py-spy may take for all ranks that do not answer."""
FRAMES = 3
"""How many of the innermost frames tell whether a rank waits: torch wraps its collectives twice."""
WAITING = (
    "/torch/distributed/",
    "/harness/checkpoint/messages.py",
    "/harness/membership.py",
    "/harness/session.py",
)
"""Where a rank waits for other ranks."""
UNCLEAR = ("/torch/autograd/graph.py", "/torch/nn/parallel/distributed.py")
"""Where it may compute or wait: DDP reduces inside of backward."""
FRAME = re.compile(r'^  File "(.+)", line \d+ in ', re.MULTILINE)


class Doing(Enum):
    """What a rank was doing, as far as it matters for who waits for whom."""

    STOPPED = auto()
    """Nothing: a signal or a debugger holds it."""
    WAITING = auto()
    """It waits for other ranks."""
    ELSEWHERE = auto()
    """It is where nobody waits for others."""
    UNCLEAR = auto()
    """It did not answer, or is where both can be."""


def dump(
    spawner: Spawner,
    files: Mapping[str, Path],
    pids: Mapping[str, int],
    patience_s: float = PATIENCE_S,
) -> bool:
    """Have the processes of these names write their stacks to these files; False if none did.

    Those that end, or are not so far that they could answer, are not waited for.
    """
    spawner.signal(STACKS_SIGNAL, tuple(files))
    deadline = time.monotonic() + patience_s
    before: list[int] | None = None
    while time.monotonic() < deadline:
        sizes = [_size(path) for name, path in files.items() if _can_answer(pids[name])]
        # Signal handlers write at once and in one go: written twice the same is written.
        if all(sizes) and sizes == before:
            break
        before = sizes
        time.sleep(LOOK_S)
    return any(_size(path) for path in files.values())


def _can_answer(pid: int) -> bool:
    return processes.state(pid) not in GONE and processes.has_handler(pid, STACKS_SIGNAL)


def doing(stacks: str) -> Doing:
    """What the main thread, the last one in `stacks`, was doing."""
    innermost = FRAME.findall(stacks.rpartition("(most recent call first):")[2])[:FRAMES]
    if not innermost or innermost[0].endswith(UNCLEAR):
        return Doing.UNCLEAR
    if any(place in path for path in innermost for place in WAITING):
        return Doing.WAITING
    return Doing.ELSEWHERE


def spy_command() -> str | None:
    """Where py-spy is: beside this Python, or on the path; None where it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def spy(files: Mapping[int, Path], within_s: float = SPY_S) -> None:
    """Have py-spy, where it is installed, write the stacks of these pids to these files.

    It reads another process' memory, so it works for those that answer nobody. None is waited for
    longer than `within_s`, all together.
    """
    command = spy_command()
    if command is None or not files:
        return
    deadline = time.monotonic() + within_s
    spies = [_spy_on(command, pid, path) for pid, path in files.items()]
    for process in spies:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        processes.end(process)


def _spy_on(command: str, pid: int, path: Path) -> subprocess.Popen[bytes]:
    with path.open("ab") as file:
        return subprocess.Popen(
            [command, "dump", "--nonblocking", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.DEVNULL,
        )


def forget_empty(folder: Path) -> None:
    """Remove the files of ranks that were never asked, and the folder if nothing is left."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if _size(path) == 0:
            path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
