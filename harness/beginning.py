"""When a launch began: with its first process, not with its first line in the log.

Imports and checks take seconds before a launcher can write anything. They are start-up, and whoever
waits for the job waits for them too.
"""

import os
import time
from pathlib import Path

from harness.rundir import RunDir

_COARSE_NS = 20_000_000
"""File systems stamp changes by a clock that ticks every few milliseconds."""


def start_ticks(process: int) -> int:
    """When a process started, in clock ticks since boot: with its pid it names it for ever.

    Raises `OSError` where there is no such process.
    """
    stat = Path(f"/proc/{process}/stat").read_bytes()
    return int(stat.rpartition(b")")[2].split()[19])  # the name before it may hold anything


def began_ns(run_dir: RunDir, process: int) -> int:
    """CLOCK_MONOTONIC at which `process` started, but not before the log's newest entry.

    A launch may be started while the one before it still ends.
    """
    now_ns = time.monotonic_ns()
    since_boot_ns = start_ticks(process) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    asleep_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - now_ns
    written_ns = [path.stat().st_mtime_ns for path in run_dir.events.glob("*.jsonl")]
    newest_ns = max(written_ns, default=0) - time.time_ns() + now_ns + _COARSE_NS
    return min(now_ns, max(since_boot_ns - asleep_ns, newest_ns if written_ns else 0))
