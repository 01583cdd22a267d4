"""Memory with a name: files of one run, in a folder that people choose.

They outlive every process, the saver too, so somebody has to take them away: the run at its end, or a
sweep once it is dead. It lives while a process of it holds the folder's lock, or its launcher lives;
what cannot be looked into is left alone.
"""

import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from harness import locks
from harness.beginning import start_ticks
from harness.checkpoint.memory import Memory
from harness.replace import replace_file
from harness.rundir import RunDir

_PREFIX = "harness-memory-"
_FILE = re.compile(r"rank-(\d+)\.slot-(\d+)")
_OWNER = "owner.json"
_TRIES = 10


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of one run."""

    path: Path

    @classmethod
    def of(cls, directory: str, run_id: str) -> "Folder":
        """Where the run's files are in `directory`, whatever its name is; nothing is created."""
        return cls(Path(directory) / f"{_PREFIX}{run_id.replace('/', '%2F')}")

    def claim(self, run_dir: RunDir, launcher: int) -> int:
        """Make the folder and say whose it is; a lock, to be held for as long as this process lives.

        Raises `OSError`, also where it is another run's: a copy of a run directory bears its name.
        """
        if (other := self._stranger(run_dir)) is not None:
            why = f"it holds copies of {other}, which this run was copied from: name another folder"
            raise FileExistsError(errno.EEXIST, why, str(self.path))
        lock = self._made()
        owner = {"schema": 1, "run_dir": str(run_dir.path), "launcher": launcher}
        born = {"start_ticks": start_ticks(launcher), "processes": _processes()}
        replace_file(self.path / _OWNER, json.dumps({**owner, **born}).encode() + b"\n")
        return lock

    def _stranger(self, run_dir: RunDir) -> Path | None:
        """The directory that it is another run's of, if that is still there."""
        noted = str(self._owner().get("run_dir", ""))
        with suppress(OSError):
            if noted and not Path(noted).samefile(run_dir.path):
                return Path(noted)
        return None

    def _made(self) -> int:
        """The folder's lock: made anew where a sweep takes away what lay there before."""
        for _ in range(_TRIES):
            self.path.mkdir(mode=0o700, exist_ok=True)
            with suppress(FileNotFoundError):
                lock = self.hold()
                if _is_at(self.path, lock):
                    return lock
                os.close(lock)
        raise FileNotFoundError(errno.ENOENT, "taken away again and again", str(self.path))

    def hold(self) -> int:
        """Keep others from taking it away until what this gives is closed. Raises `OSError`."""
        lock = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_SH)
        return lock

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold it for as long as the block lasts, if it is there."""
        lock = -1
        with suppress(OSError):  # there is none
            lock = self.hold()
        try:
            yield
        finally:
            if lock >= 0:
                os.close(lock)

    def clear(self, rank: int) -> None:
        """Take away what a rank before this one was killed in the middle of making."""
        for path in self.path.glob(f".rank-{rank}.slot-*"):
            path.unlink(missing_ok=True)

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

    def is_of(self, run_dir: RunDir) -> bool:
        """False where it is the run's that this one was copied from."""
        return self._stranger(run_dir) is None

    def remove_dead(self) -> bool:
        """Take everything away unless its run lives, or is somebody else's; True if it is gone.

        Nobody can claim it meanwhile: whoever wants to waits for our lock, and then makes it anew.
        """
        try:
            lock = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_elsewhere() or self._launcher_lives() or self._is_led():
                return False
            self.remove()
        except OSError:  # it is held, or nobody can tell
            return False
        finally:
            os.close(lock)
        return not self.path.exists()

    def _owner(self) -> dict[str, object]:
        try:
            return dict(json.loads((self.path / _OWNER).read_bytes()))
        except (OSError, ValueError, TypeError):
            return {}

    def _is_elsewhere(self) -> bool:
        """Its processes are those of another container, of which nobody here can tell whether they live."""
        return self._owner().get("processes", _processes()) != _processes()

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


def _processes() -> str:
    """Names the processes among which a process id means something."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def is_led(run_dir: RunDir) -> bool:
    """True while a launcher is at work in the run's directory. Raises `OSError` where that cannot be told."""
    return locks.is_held(run_dir.path)


def check(directory: str) -> None:
    """Raise `ValueError` for a directory that cannot hold copies; a typing error is not to make one."""
    if directory and not (Path(directory).is_dir() and os.access(directory, os.W_OK | os.X_OK)):
        raise ValueError(
            f"memory_dir = {directory!r} is no folder that can be written to: make it, or name one"
            " that is there, such as /dev/shm"
        )


def sweep(directory: str, spared: Folder | None = None) -> list[Folder]:
    """Take away what dead runs left in `directory`; which those were."""
    left = [Folder(path) for path in sorted(Path(directory).glob(f"{_PREFIX}*"))]
    return [folder for folder in left if folder != spared and folder.remove_dead()]


def _is_at(path: Path, descriptor: int) -> bool:
    """True if what is open is still what lies there."""
    opened = os.fstat(descriptor)
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)
