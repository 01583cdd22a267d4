"""How long the launcher waits for stacks: no longer than anyone can still answer."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launch.rank import STACKS_SIGNAL
from launch.spawner import Spawner
from launch.stacks import dump
from tests.waiting import until

ANSWERS = f"""\
import faulthandler, sys, time
faulthandler.register({int(STACKS_SIGNAL)}, file=open(sys.argv[1], "w"))
print("ready", flush=True)
time.sleep(1000)
"""
SILENT = """\
print("ready", flush=True)
import time
time.sleep(1000)
"""
LONG_S = 60.0


class Direct(Spawner):
    """Signals processes of this test."""

    def __init__(self, pids: dict[str, subprocess.Popen[bytes]]) -> None:
        self._pids = pids

    def signal(self, number, names, *, forced=False):
        for name in names:
            if "silent" not in name and self._pids[name].returncode is None:
                self._pids[name].send_signal(number)


@contextmanager
def started(folder: Path, *names: str) -> Iterator[tuple[Direct, dict[str, Path], dict[str, int]]]:
    files = {name: folder / name for name in names}
    running = {
        name: subprocess.Popen(
            [sys.executable, "-c", SILENT if "silent" in name else ANSWERS, str(files[name])],
            stdout=subprocess.PIPE,
        )
        for name in names
    }
    for process in running.values():
        assert process.stdout is not None
        process.stdout.readline()
    try:
        yield Direct(running), files, {name: it.pid for name, it in running.items()}
    finally:
        for process in running.values():
            process.kill()
            process.communicate()


def test_a_process_that_has_no_handler_or_is_dead_is_not_waited_for(tmp_path: Path):
    with started(tmp_path, "answers", "silent", "dead") as (spawner, files, pids):
        spawner._pids["dead"].kill()
        stat = Path(f"/proc/{pids['dead']}/stat")
        until(lambda: stat.read_text().split(") ")[1][0] == "Z", "its death")
        began_s = time.monotonic()
        assert dump(spawner, files, pids, LONG_S)
        assert time.monotonic() - began_s < LONG_S / 2
        assert "most recent call first" in files["answers"].read_text()
        assert not files["silent"].exists()


def test_where_nobody_can_answer_there_is_no_wait_and_nothing_was_dumped(tmp_path: Path):
    with started(tmp_path, "silent") as (spawner, files, pids):
        began_s = time.monotonic()
        assert not dump(spawner, files, pids, LONG_S)
        assert time.monotonic() - began_s < LONG_S / 2
