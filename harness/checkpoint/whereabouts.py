"""Where the saver of a run listens, for those who did not start it: the next launch, and `harness sweep`."""

import json
import os

from harness.replace import replace_file
from harness.rundir import RunDir

PREFIX = "harness-saver-"
"""What the name of every saver's socket begins with."""


def announce(run_dir: RunDir, address: str) -> None:
    """Say that the run's memory is held at `address` from now on."""
    content = {"schema": 1, "address": address, "pid": os.getpid(), "inode": _inode(run_dir)}
    replace_file(run_dir.saver, json.dumps(content).encode() + b"\n")


def whereabouts(run_dir: RunDir) -> str:
    """The address of the saver that held the run's memory last; empty where none has.

    A run directory that is a copy of another has none: what that saver holds is the other's.
    """
    try:
        said = json.loads(run_dir.saver.read_bytes())
        return str(said["address"]) if said["inode"] == _inode(run_dir) else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _inode(run_dir: RunDir) -> int:
    """What a directory keeps when it is moved, and its copy has not."""
    return run_dir.path.stat().st_ino
