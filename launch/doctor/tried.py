"""Runs the trial as a process of its own, with a deadline, and reads what it says."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

from harness.signals.peaks import peak
from launch import processes
from launch.doctor.facts import Gpu, Trial

DEADLINE_S = 180.0
"""The imports alone may take half a minute on a cold disk."""
MODULE = "launch.doctor.trial"


def tried() -> Trial:
    """What came of two processes that were forked and formed a group."""
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, complaints = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        return Trial(error=f"it was not over within {DEADLINE_S:g} s")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        processes.end(process)
    return heard(said, complaints, process.returncode)


def heard(said: str, complaints: str, status: int) -> Trial:
    """The trial that a process told of, or how it ended instead."""
    lines = said.splitlines()
    try:
        told: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        gpus = tuple(_gpu(one["name"], one["memory_bytes"]) for one in told.pop("gpus", []))
        if not told:
            raise ValueError
        return Trial(gpus=gpus, **told)
    except (ValueError, TypeError, KeyError):
        last = (complaints.strip().splitlines() or ["and said nothing"])[-1]
        return Trial(error=f"the trial ended with {status}: {last}")


def _gpu(name: str, memory_bytes: int) -> Gpu:
    published = peak(name, "bfloat16")
    return Gpu(name, memory_bytes, None if published is None else published.flops)
