import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from harness import settings
from harness.rundir import RunDir

PATIENCE_S = 20.0


class RankProcess:
    """A real process that registered itself as a rank of the run."""

    def __init__(self, run_dir: RunDir, rank: int, attempt: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faultinject.rank", run_dir.path, str(rank), str(attempt)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def ready(self) -> "RankProcess":
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        return self

    def tell(self, command: str) -> None:
        """Have it write an event: `step N` or `save N`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def lives(self) -> bool:
        return self._process.poll() is None

    def end(self) -> int:
        """Wait for the end that somebody else brought it; its exit code."""
        return self._process.wait(PATIENCE_S)

    def kill(self, reap: bool = True) -> None:
        self._process.kill()
        if reap:
            self._process.wait(PATIENCE_S)

    def close(self) -> None:
        self._process.kill()
        with self._process:
            pass


Ranks = Callable[[int, int], RankProcess]


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    made = RunDir.at(tmp_path / "run")
    made.create()
    return made


@pytest.fixture
def start_rank(run_dir: RunDir) -> Iterator[Ranks]:
    """Starts a rank of an attempt; all are gone when the test ends."""
    started: list[RankProcess] = []

    def start(rank: int, attempt: int) -> RankProcess:
        started.append(RankProcess(run_dir, rank, attempt))
        return started[-1]

    yield start
    for process in started:
        process.close()


def worker(run_dir: RunDir, rank: int) -> dict[str, Any]:
    """What rank `rank` wrote of itself."""
    return cast(dict[str, Any], json.loads(run_dir.worker(rank).read_text()))


def rewrite(run_dir: RunDir, rank: int, values: dict[str, Any]) -> None:
    """Forge what rank `rank` wrote of itself."""
    run_dir.worker(rank).write_text(json.dumps(worker(run_dir, rank) | values))


def record(run_dir: RunDir, armed: bool) -> None:
    """Write the run's `run.toml`."""
    settings.write(run_dir.settings, settings.Record("run", ("train.py",), {}, {}, armed))
