"""Whole jobs: the example trained for real, on one to four ranks, with and without kills."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.events import Entry
from harness.journal import read
from harness.rundir import RunDir
from tests.zygote import ROOT, Launched, Zygote

SCRIPT = ROOT / "tests" / "scripts" / "maimed_gpt.py"
STEPS = 30
STEPS_AN_EPOCH = 15


@dataclass(frozen=True, slots=True)
class Job:
    """A run directory, and the launches that were made in it."""

    zygote: Zygote
    folder: Path
    text: Path

    @property
    def path(self) -> Path:
        return self.folder / "run"

    def beside(self, name: str) -> "Job":
        """Another job on the same text."""
        folder = self.folder / name
        folder.mkdir()
        return Job(self.zygote, folder, self.text)

    def start(
        self, ranks: int, *flags: str, script: tuple[str, ...] = (), **environment: str
    ) -> Launched:
        """Launch the tiny example over two epochs of text, every step of it digested."""
        ours = [
            "--run",
            "run",
            "--no-metrics",
            "--digest-every-steps",
            "1",
            "--save-every-steps",
            "3",
            "--threads",
            "1",
        ]
        theirs = ["--preset", "tiny", "--steps", str(STEPS), "--data", str(self.text), *script]
        return self.zygote.launch(
            ["run", *ours, "--nproc-per-node", str(ranks), *flags, str(SCRIPT), *theirs],
            self.folder,
            environment,
        )

    def run(self, ranks: int, *flags: str, script: tuple[str, ...] = (), **environment: str) -> int:
        """`start`, and its exit code."""
        return self.start(ranks, *flags, script=script, **environment).wait(120)

    def entries(self) -> list[Entry]:
        return read(RunDir.at(self.path))


def _text() -> bytes:
    """Bytes of which 9 in 10 parts are `STEPS_AN_EPOCH` batches of the tiny preset."""
    blocks = (hashlib.sha256(str(i).encode()).hexdigest().encode() for i in range(1_000))
    return b"".join(blocks)[: (STEPS_AN_EPOCH * 24 * 32 + 1) * 10 // 9]


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes(_text())
    return path


@pytest.fixture
def job(zygote: Zygote, tmp_path: Path, text: Path) -> Iterator[Job]:
    """A job of the test's own; nothing of it may be left running."""
    yield Job(zygote, tmp_path, text)
    left = [f"{process.pid} {process.name()}" for process in zygote.below()]
    zygote.kill_all()
    assert not left, f"left running: {left}"


@pytest.fixture(scope="session")
def twin(
    zygote: Zygote, tmp_path_factory: pytest.TempPathFactory, text: Path
) -> Callable[[int], Path]:
    """The run that never stopped, made once for each number of ranks."""
    made: dict[int, Path] = {}

    def of(ranks: int) -> Path:
        if ranks not in made:
            job = Job(zygote, tmp_path_factory.mktemp(f"twin-{ranks}"), text)
            assert job.run(ranks) == 0
            made[ranks] = job.path
        return made[ranks]

    return of
