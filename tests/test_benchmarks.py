"""Benchmarks at small sizes: that they run, that their last line says what it has to, and what holds at any size."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.benchmarks.test_all import FIELDS
from tests.zygote import ROOT

pytestmark = pytest.mark.processes


def last_line(name: str, *flags: str) -> tuple[int, dict[str, Any]]:
    """Its exit status, and its last line."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *flags],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        timeout=200,
        check=False,
    )
    return done.returncode, json.loads(done.stdout.decode().splitlines()[-1])


def test_saves_to_either_tier_leave_nothing_in_memory():
    status, told = last_line("memory_growth", "--mb", "4", "--saves", "25")
    assert set(told) == FIELDS
    assert set(told["ours"]) == {
        f"{tier}: {what}"
        for tier in ("memory", "storage")
        for what in ("ranks", "saver", "/dev/shm", "memfd")
    }
    assert told["ours"]["memory: memfd"] == told["ours"]["storage: memfd"] == 0
    assert status == 0
