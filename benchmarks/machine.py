"""What a figure was measured on; every benchmark says it in these words."""

import os
import platform
from pathlib import Path


def machine(*more: str) -> str:
    """Cores that this process may use, processor, Python, and whatever else matters."""
    models = {
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    }
    model = ", ".join(sorted(models)) or platform.processor()
    cores = len(os.sched_getaffinity(0))
    return ", ".join([f"{cores} × {model}", f"Python {platform.python_version()}", *more])
