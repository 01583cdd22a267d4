"""Names every file of a run. Nobody else builds a path inside a run directory."""

import os
import re
from dataclasses import dataclass
from pathlib import Path


def check_local(path: str | os.PathLike[str]) -> None:
    """Raise `ValueError` for a URL, or a folder of that name would appear; it is not repeated."""
    if re.match(r"[A-Za-z][\w+.-]*:/", os.fspath(path)):
        raise ValueError(
            "a run directory is a folder of this machine and no URL: give it a path, and where"
            " checkpoints are to be kept as --checkpoints URL"
        )


@dataclass(frozen=True, slots=True)
class RunDir:
    """The directory of one run; it is enough to recompute every figure about the run."""

    path: Path

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> "RunDir":
        """The run directory at `path`, made absolute; nothing is created."""
        # Unlike pathlib's, this leaves the `~` of a user that is not there as it is, as a shell does.
        return cls(Path(os.path.expanduser(path)).absolute())  # noqa: PTH111

    def create(self) -> None:
        """Make the directory and the folders that every run has. Existing ones stay as they are."""
        for folder in (self.events, self.workers, self.slots, self.logs, self.cache):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def settings(self) -> Path:
        """What was asked of the run, and of what environment: `run.toml`."""
        return self.path / "run.toml"

    @property
    def tape(self) -> Path:
        """The faults to come, written before the first rank starts."""
        return self.path / "tape.jsonl"

    def hit(self, id_: str) -> Path:
        """Exists once the process that armed point `id_` was hit there."""
        return self.path / "hits" / id_

    @property
    def storage_faults(self) -> Path:
        """How often each faulty call to the storage was made, over all processes of the run."""
        return self.path / "storage-faults.bin"

    @property
    def storage_history(self) -> Path:
        """What was created and deleted in the storage, for listings that are to be stale."""
        return self.path / "storage-history.jsonl"

    @property
    def events(self) -> Path:
        """Folder of the event files."""
        return self.path / "events"

    def event_file(self, writer: str, roll: int = 0) -> Path:
        """Event file number `roll` of `writer`: `rank-3.jsonl`, then `rank-3.1.jsonl` and so on."""
        return self.events / (f"{writer}.{roll}.jsonl" if roll else f"{writer}.jsonl")

    @property
    def workers(self) -> Path:
        """Folder in which each rank registers itself."""
        return self.path / "workers"

    def worker(self, rank: int) -> Path:
        """What rank `rank` says of itself: the only thing that an injector may trust."""
        return self.workers / f"{rank}.json"

    @property
    def slots(self) -> Path:
        """Folder of the ranks' slots."""
        return self.path / "slots"

    def slot(self, rank: int) -> Path:
        """Shared memory in which rank `rank` shows its progress, readable after its death."""
        return self.slots / str(rank)

    @property
    def checkpoints(self) -> Path:
        """The default storage of checkpoints; any fsspec URL may stand in its place."""
        return self.path / "checkpoints"

    @property
    def storages(self) -> Path:
        """Where the run has kept checkpoints: a place that was its own and is empty was emptied."""
        return self.path / "storages.json"

    @property
    def rollback(self) -> Path:
        """From before which step the next attempt is to resume, after a loss that jumped."""
        return self.path / "rollback.json"

    @property
    def peaks(self) -> Path:
        """What devices that no table knows were measured to reach."""
        return self.path / "peaks.json"

    @property
    def logs(self) -> Path:
        """Folder of what the ranks printed."""
        return self.path / "logs"

    def newest_attempt(self) -> int:
        """The highest number of an attempt that has a folder in `logs`; 0 where none has."""
        names = (folder.name.removeprefix("attempt-") for folder in self.logs.glob("attempt-*"))
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def log(self, attempt: int, rank: int, stream: str) -> Path:
        """What rank `rank` printed in attempt `attempt`; `stream` is `out` or `err`."""
        return self.logs / f"attempt-{attempt}" / f"rank-{rank}.{stream}"

    def error(self, attempt: int, rank: int) -> Path:
        """The exception that ended rank `rank`, as torch's `record` writes it."""
        return self.logs / f"attempt-{attempt}" / f"rank-{rank}.error.json"

    def incident(self, attempt: int) -> Path:
        """Folder of what was seen when attempt `attempt` failed: stacks, exit causes."""
        return self.path / "incidents" / str(attempt)

    def stacks(self, attempt: int, rank: int) -> Path:
        """What rank `rank` was doing when attempt `attempt` failed."""
        return self.incident(attempt) / f"rank-{rank}.txt"

    def exits(self, attempt: int) -> Path:
        """How every rank of attempt `attempt` ended, when it failed."""
        return self.incident(attempt) / "exits.json"

    @property
    def cache(self) -> Path:
        """Folder of what can be recomputed from the log at any time."""
        return self.path / "cache"

    @property
    def fold(self) -> Path:
        """How far the log is folded, so that a reader takes in the rest alone."""
        return self.cache / "fold.msgpack"

    @property
    def exporter(self) -> Path:
        """Where the run's metrics are served, in Prometheus' `file_sd` form."""
        return self.path / "exporter.json"

    @property
    def saver(self) -> Path:
        """Where the saver listens that holds the run's memory; it may outlive the launcher."""
        return self.path / "saver.json"

    @property
    def launcher_log(self) -> Path:
        """What torch's agent and the launcher's helpers logged."""
        return self.logs / "launcher.log"
