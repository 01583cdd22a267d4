"""What every rank was doing when its attempt failed, written by the ranks themselves.

A stopped rank answers nobody, so the wait for answers is short; a restart does not wait for a report.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from launch.rank import STACKS_SIGNAL
from launch.spawner import Spawner

PATIENCE_S = 0.1
LOOK_S = 0.004


def dump(spawner: Spawner, files: Mapping[str, Path]) -> bool:
    """Have the processes of these names write their stacks to these files; False if none did."""
    spawner.signal(STACKS_SIGNAL, tuple(files))
    deadline = time.monotonic() + PATIENCE_S
    before: list[int] = []
    while time.monotonic() < deadline:
        sizes = [_size(path) for path in files.values()]
        # Signal handlers write at once and in one go: written twice the same is written.
        if all(sizes) and sizes == before:
            break
        before = sizes
        time.sleep(LOOK_S)
    return any(_size(path) for path in files.values())


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
