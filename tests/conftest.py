"""What every test is held to: it leaves no process, no shared memory, no listening port and no temporary file."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.flat import flat_url
from tests.servers import abfs_url, azurite, fake_gcs, gs_url, moto, s3_url
from tests.zygote import Zygote

__all__ = [
    "abfs_url",
    "azurite",
    "fake_gcs",
    "flat_url",
    "gs_url",
    "moto",
    "s3_url",
]  # fixtures for everyone

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Whatever shell began this: one that does so in the background leaves SIGINT ignored, by all that is started.
signal.signal(signal.SIGINT, signal.default_int_handler)


def _left_behind(temporary: Path) -> set[str]:
    """What this test process owns that must be gone in the end, in words; `temporary` is its folder for such files."""
    mine = set(psutil.Process().children(recursive=True))
    marked = {process for process in psutil.process_iter() if _started_by_us(process)}
    names = {_named(process) for process in mine | marked} - {""}
    names |= {f"shared memory {path.name}" for path in Path("/dev/shm").iterdir()}
    return names | {f"temporary {it.name}" for it in temporary.iterdir() if not _is_cache(it.name)}


def _is_cache(name: str) -> bool:
    """True for what torch's compiler keeps for the next process."""
    return name.startswith("torchinductor_")


def _named(process: psutil.Process) -> str:
    """A process in words; nothing for Python's own tracker of shared memory, which we all share."""
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return ""  # it ended meanwhile
    tracks = "multiprocessing.resource_tracker" in command and process.ppid() == os.getpid()
    return "" if tracks else f"process {process.pid}: {command}"


def _started_by_us(process: psutil.Process) -> bool:
    """True for a process with this test run's mark, wherever it was re-parented to."""
    try:
        return process.environ().get("HARNESS_TEST_RUN") == MARK and process.pid != os.getpid()
    except (psutil.Error, OSError):
        return False


BESIDE_S = 30.0
MARK = str(os.getpid())
os.environ["HARNESS_TEST_RUN"] = MARK


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fails the test run if it leaves a process, shared memory or a temporary file that was not there before."""
    tmp_path_factory.getbasetemp()  # chosen while the temporary folder is still everybody's
    with (
        tempfile.TemporaryDirectory(prefix="harness-tests-") as name,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TMPDIR", name)
        patch.setattr(tempfile, "tempdir", None)  # to be looked up anew
        before = _left_behind(Path(name))
        yield
        psutil.wait_procs(psutil.Process().children(recursive=True), timeout=10)
        left = _left_behind(Path(name)) - before
        until_s = time.monotonic() + BESIDE_S
        while (
            left and time.monotonic() < until_s
        ):  # tests beside these have shared memory for a while
            time.sleep(0.5)
            left &= _left_behind(Path(name))
    assert not left, f"left behind after the tests: {sorted(left)}"


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """The warm process from which all launchers of this test run are forked."""
    process = Zygote()
    yield process
    process.close()
