"""Takes away what dead runs left in memory, for the end of a batch job: `harness sweep`.

A run that is led by a launcher, or of which a rank lives, is left alone.
"""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import suppress
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
    """Take away what a run left; what came of that, in words. Raises `ValueError` for what is no run."""
    record = settings.read(run_dir.settings)
    if record is None:
        raise ValueError(f"{run_dir.path} is not the directory of a run: there is no run.toml")
    if is_led(run_dir):
        return "a launcher is at work in it; left alone"
    found = ["the saver that outlived its launcher"] if _dismissed(whereabouts(run_dir)) else []
    directory = settings.values(record.settings).memory_dir
    folder = Folder.of(directory or SHARED, record.run_id)
    if folder.remove_dead():
        found.append(str(folder.path))
    return f"taken away: {' and '.join(found)}" if found else "nothing was left of it"


def sweep_all() -> Iterator[str]:
    """Take away what any dead run of this user left on this machine; each in words."""
    for address in _savers():
        with suppress(OSError, ValueError, IndexError):
            run_dir = _served(_pid(address))
            if not is_led(run_dir) and _dismissed(address):
                yield f"the saver of {run_dir.path}"
    for folder in sweep(SHARED):
        yield str(folder.path)


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


def _served(pid: int) -> RunDir:
    """The run of a saver, by its command line."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return RunDir.at(os.fsdecode(words[words.index(b"harness.checkpoint.saver") + 1]))


def _dismissed(address: str) -> bool:
    """Have the saver there end, and wait for that; False if there is none."""
    if not address:
        return False
    try:
        pidfd = os.pidfd_open(_pid(address))
    except OSError:
        return False
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        watch = select.poll()
        watch.register(pidfd, select.POLLIN)
        return bool(watch.poll(_GONE_WITHIN_S * 1000))
    finally:
        os.close(pidfd)
