"""Launchers for tests: forked from one warm process, watched by pid, and gone in the end."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.events import Event
from harness.journal import read
from harness.rundir import RunDir
from tests.waiting import until
from tests.zygote import Launched, Zygote

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass
class Bench:
    """A directory in which a test launches runs, and looks at what they did."""

    zygote: Zygote
    folder: Path
    launched: list[Launched] = field(default_factory=list)

    @property
    def run_dir(self) -> RunDir:
        """Of the run that `launch` starts, unless it is told otherwise."""
        return RunDir.at(self.folder / "run")

    def launch(
        self,
        *arguments: str | Path,
        ranks: int = 1,
        environment: Mapping[str, str] | None = None,
        run: str = "run",
    ) -> Launched:
        """Launch `harness run … ARGUMENTS`; names of scripts are those in `scripts/`."""
        flags = ("--run", run, "--nproc-per-node", str(ranks), "--no-metrics", "--quiet")
        found = [SCRIPTS / it if (SCRIPTS / str(it)).is_file() else it for it in arguments]
        launched = self.zygote.launch(["run", *flags, *found], self.folder, environment)
        self.launched.append(launched)
        return launched

    def write(self, name: str, source: str) -> Path:
        """A script of the test's own."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        return path

    def events(self, kind: type[Event] | None = None) -> list[Any]:
        """What is in the log so far, of one kind or of all."""
        return [
            entry.event
            for entry in read(self.run_dir)
            if kind is None or isinstance(entry.event, kind)
        ]

    def attempts(self) -> list[int]:
        """Numbers of the attempts that printed something or could have."""
        found = self.run_dir.logs.glob("attempt-*")
        return sorted(int(path.name.removeprefix("attempt-")) for path in found)

    def printed(self, attempt: int = 1, rank: int = 0, stream: str = "out") -> str:
        """What a rank printed so far."""
        path = self.run_dir.log(attempt, rank, stream)
        return path.read_text() if path.exists() else ""

    def told(self, attempt: int = 1, rank: int = 0) -> dict[str, Any]:
        """The JSON object that a rank printed first, once it has."""

        def line() -> str:
            runs = self.zygote.runs(self.launched[-1])
            first = next(iter(self.printed(attempt, rank).splitlines()), "")
            assert first or runs, f"it ended: {self.launched[-1].printed}"
            return first

        told: dict[str, Any] = json.loads(until(line, f"rank {rank} of attempt {attempt} prints"))
        return told

    def pids(self, attempt: int, ranks: int) -> list[int]:
        """Pids of the ranks, which print `{"pid": …}` first."""
        return [self.told(attempt, rank)["pid"] for rank in range(ranks)]


@pytest.fixture
def bench(zygote: Zygote, tmp_path: Path) -> Iterator[Bench]:
    """A bench of its own for each test; what it leaves running is killed and fails the test."""
    here = Bench(zygote, tmp_path)
    yield here
    left = [f"{process.pid} {process.name()}" for process in zygote.below()]
    zygote.kill_all()
    assert not left, f"left running: {left}"


def dead(pids: Sequence[int]) -> bool:
    """True once none of `pids` lives."""
    return not any(psutil.pid_exists(pid) and _lives(pid) for pid in pids)


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def signal_all(pids: Sequence[int], number: int) -> None:
    """Send a signal to each."""
    for pid in pids:
        os.kill(pid, number)
