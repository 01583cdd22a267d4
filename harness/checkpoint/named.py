"""Memory with a name: files of one run, in a folder that people choose.

They outlive every process, the saver too, so somebody has to take them away: the run at its end, or a
sweep once it is dead. It lives while a process of it holds the owner's lock, or its launcher lives.
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.beginning import start_ticks
from harness.checkpoint.memory import Memory
from harness.replace import replace_file
from harness.rundir import RunDir

_PREFIX = "harness-memory-"
_FILE = re.compile(r"rank-(\d+)\.slot-(\d+)")
_OWNER = "owner.json"


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of one run."""

    path: Path

    @classmethod
    def of(cls, directory: str, run_id: str) -> "Folder":
        """Where the run's files are in `directory`; nothing is created."""
        return cls(Path(directory) / f"{_PREFIX}{run_id}")

    def claim(self, run_dir: RunDir, launcher: int) -> int:
        """Make the folder and say whose it is; a lock, to be held for as long as this process lives.

        Raises `OSError`.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = {"schema": 1, "run_dir": str(run_dir.path), "launcher": launcher}
        born = {"start_ticks": start_ticks(launcher)}
        replace_file(self.path / _OWNER, json.dumps({**owner, **born}).encode() + b"\n")
        return self.hold()

    def hold(self) -> int:
        """Keep others from taking it away until what this gives is closed. Raises `OSError`."""
        lock = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_SH)
        return lock

    def make(self, rank: int, slot: int, size_bytes: int) -> Memory:
        """New memory in the place of what was there under this name. Raises `OSError`."""
        return Memory.named(self.path / f"rank-{rank}.slot-{slot}", size_bytes)

    def files(self, rank: int | None) -> Iterator[tuple[int, int, Path]]:
        """Rank, slot and path of what is there of a rank, or of all."""
        for path in sorted(self.path.glob("rank-*")):
            match = _FILE.fullmatch(path.name)
            if match is not None and rank in (None, int(match[1])):
                yield int(match[1]), int(match[2]), path

    def left_bytes(self) -> int:
        """What is left of the file system that it is in."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def keep_only(self, rank: int, slots: Collection[int]) -> None:
        """Take away what one rank had in other slots than these."""
        for _, slot, path in self.files(rank):
            if slot not in slots:
                path.unlink(missing_ok=True)

    def remove_rank(self, rank: int) -> None:
        """Take away what one rank had, and the folder with the last."""
        self.keep_only(rank, ())
        if not any(self.files(None)):
            self.remove()

    def remove(self) -> None:
        """Take everything away."""
        shutil.rmtree(self.path, ignore_errors=True)

    @property
    def is_live(self) -> bool:
        """True while its run is: nobody may take it away."""
        return _is_held(self.path) or self._launcher_lives() or self._is_led()

    def _owner(self) -> dict[str, object]:
        try:
            return dict(json.loads((self.path / _OWNER).read_bytes()))
        except (OSError, ValueError, TypeError):
            return {}

    def _launcher_lives(self) -> bool:
        owner = self._owner()
        with suppress(OSError, KeyError, TypeError, ValueError):
            process = int(str(owner["launcher"]))
            state = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0]
            # One that has ended and whom nobody has taken note of, as in many a container.
            return start_ticks(process) == owner["start_ticks"] and state not in (b"Z", b"X")
        return False

    def _is_led(self) -> bool:
        run_dir = str(self._owner().get("run_dir", ""))
        return bool(run_dir) and is_led(RunDir.at(run_dir))


def is_led(run_dir: RunDir) -> bool:
    """True while a launcher is at work in the run's directory."""
    return _is_held(run_dir.path)


def _is_held(folder: Path) -> bool:
    """True while some process holds a lock on `folder`, in whatever mode."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def sweep(directory: str, spared: Folder | None = None) -> list[Folder]:
    """Take away what dead runs left in `directory`; which those were."""
    left = [Folder(path) for path in sorted(Path(directory).glob(f"{_PREFIX}*")) if path.is_dir()]
    dead = [folder for folder in left if folder != spared and not folder.is_live]
    for folder in dead:
        folder.remove()
    return dead
