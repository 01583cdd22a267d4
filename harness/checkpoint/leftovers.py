"""Takes away what dead runs left in memory, for the end of a batch job: `harness sweep`.

A run that is led by a launcher, or of which a rank lives, is left alone.
"""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from harness import settings
from harness.checkpoint.named import Folder, is_led, sweep
from harness.checkpoint.whereabouts import PREFIX, whereabouts
from harness.checkpoint.wire import Line
from harness.rundir import RunDir

SHARED = "/dev/shm"  # noqa: S108  # whose files are whose, their folders say
_TIMEOUT_S = 10.0
_GONE_WITHIN_S = 60.0
"""A saver first finishes what was handed over whole."""


def sweep_run(run_dir: RunDir) -> str:
    """Take away what a run left; what came of that, in words.

    Raises `ValueError` for what is no run, and for a saver that does not end.
    """
    record = settings.read(run_dir.settings)
    if record is None:
        raise ValueError(f"{run_dir.path} is not the directory of a run: there is no run.toml")
    if is_led(run_dir):
        return "a launcher is at work in it; left alone"
    found = ["the saver that outlived its launcher"] if _dismissed(whereabouts(run_dir)) else []
    directory = settings.values(record.settings).memory_dir
    folder = Folder.of(directory or SHARED, record.run_id)
    if folder.is_of(run_dir) and folder.remove_dead():
        found.append(str(folder.path))
    return f"taken away: {' and '.join(found)}" if found else "nothing was left of it"


def sweep_all() -> Iterator[str]:
    """Take away what any dead run of this user left on this machine; each in words."""
    for address in _savers():
        with suppress(OSError):
            run_dir = _served(_pid(address))
            if run_dir is not None and not is_led(run_dir):
                yield _ended(address, run_dir)
    for folder in sweep(SHARED):
        yield f"taken away: {folder.path}"


def _ended(address: str, run_dir: RunDir) -> str:
    try:
        gone = _dismissed(address)
    except ValueError as error:
        return f"left alone: {run_dir.path}: {error}"
    return f"{'taken away' if gone else 'gone by itself'}: the saver of {run_dir.path}"


def _savers() -> list[str]:
    """Addresses of all savers of this machine."""
    lines = Path("/proc/net/unix").read_text("ascii", "replace").splitlines()
    names = {line.split()[-1] for line in lines}
    return sorted(name[1:] for name in names if name.startswith(f"@{PREFIX}"))


def _pid(address: str) -> int:
    """Of the saver that listens there. Raises `OSError` if none of ours does."""
    line = Line.to(address, _TIMEOUT_S)
    line.close()
    return int(line.peer_pid)


def _served(pid: int) -> RunDir | None:
    """The run of a saver, by its command line; None if it is none."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    after = [word for name, word in pairwise(words) if name == b"harness.checkpoint.saver"]
    return RunDir.at(os.fsdecode(after[0])) if after else None


def _dismissed(address: str) -> bool:
    """Have the saver there end, and wait for that; False if there is none. Raises `ValueError` if it does not."""
    if not address:
        return False
    try:
        process = _pid(address)
        pidfd = os.pidfd_open(process)
    except OSError:
        return False
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        watch = select.poll()
        watch.register(pidfd, select.POLLIN)
        if not watch.poll(_GONE_WITHIN_S * 1000):
            raise ValueError(
                f"its saver, process {process}, has not ended in {_GONE_WITHIN_S:g} s and holds memory:"
                " it may be saving that; wait, or end it by SIGKILL"
            )
        return True
    finally:
        os.close(pidfd)
