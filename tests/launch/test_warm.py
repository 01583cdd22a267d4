"""What is imported before the fork, and what of it stands in the way of one."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch import processes, warm

BUSY = """\
import threading
done = threading.Event()
threads = [threading.Thread(target=done.wait) for _ in range({count})]
for thread in threads:
    thread.start()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder of modules; threads that they started end with the test."""
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        module = sys.modules.pop(path.stem, None)
        if module is not None and hasattr(module, "done"):
            module.done.set()
            for thread in module.threads:
                thread.join()


def test_each_module_that_starts_threads_is_told_by_name_and_nothing_of_the_path_is_left(
    folder: Path,
):
    for name, source in {
        "warm_calm": "",
        "warm_one": BUSY.format(count=1),
        "warm_two": BUSY.format(count=2),
    }.items():
        (folder / f"{name}.py").write_text(source)
    before = list(sys.path)
    assert warm.preload(["warm_one", "warm_calm", "warm_two"], str(folder)) == {
        "warm_one": "it starts a thread, which no fork takes along",
        "warm_two": "it starts 2 threads, which no fork takes along",
    }
    assert sys.path == before
    assert {"warm_one", "warm_calm", "warm_two"} <= sys.modules.keys()


def test_a_module_that_touches_the_accelerator_is_told_by_name(folder: Path, monkeypatch):
    (folder / "warm_device.py").write_text("")
    (folder / "warm_after.py").write_text("")
    touched = iter([False, True, True, True])
    monkeypatch.setattr(processes, "holds_accelerator", lambda: next(touched))
    assert warm.preload(["warm_device", "warm_after"], str(folder)) == {
        "warm_device": "it touches CUDA, which no fork survives"
    }


def test_a_module_that_cannot_be_imported_says_why_and_leaves_nothing_in_the_path(folder: Path):
    (folder / "warm_broken.py").write_text("1 / 0\n")
    before = list(sys.path)
    with pytest.raises(ImportError, match=r"^warm_broken: ZeroDivisionError: division by zero$"):
        warm.preload(["warm_broken"], str(folder))
    with pytest.raises(ImportError, match=r"^warm_nowhere: ModuleNotFoundError: No module named"):
        warm.preload(["warm_nowhere"], str(folder))
    (folder / "warm_script.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(ImportError, match=r"^warm_script: SystemExit: 3$"):
        warm.preload(["warm_script"], str(folder))
    assert sys.path == before
