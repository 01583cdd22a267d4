"""What a device was found to reach, kept with the run: each attempt would come to another figure, and its MFU too.

It is measured once for a device and a dtype; what cannot be read or written here is measured again.
"""

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path

import torch

from harness.replace import replace_file
from harness.rundir import RunDir
from harness.signals import flops

LOG = logging.getLogger("harness")
SCHEMA = 1


def reached(run_dir: RunDir, device: torch.device, dtype: torch.dtype, kind: str) -> float | None:
    """Operations a second of `device` in `dtype`, which is called `kind`; None if it has no product of it."""
    known = _read(run_dir.peaks)
    name = f"{_name(device)}: {kind}"
    if name in known:
        return known[name]
    try:
        found = flops.measured_peak(device, dtype)
    except (
        RuntimeError
    ) as error:  # such as of a dtype in which nothing can be multiplied, or no memory
        LOG.info("harness: no peak is known for %s: %s", kind, str(error).splitlines()[0])
        return None
    content = {"schema": SCHEMA, "peaks": {**known, name: found}}
    try:
        replace_file(run_dir.peaks, json.dumps(content, indent=1).encode() + b"\n")
    except OSError as error:
        LOG.warning("harness: the next attempt measures the peak anew: %s", error)
    return found


def _name(device: torch.device) -> str:
    """What the figure belongs to: a run may go on elsewhere."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{device.type}, {torch.backends.cpu.get_cpu_capability()}, {threads} threads"


def _read(path: Path) -> Mapping[str, float]:
    """What was measured before, as far as it makes sense."""
    try:
        peaks = json.loads(path.read_bytes())["peaks"]
        return {
            str(name): float(found)
            for name, found in peaks.items()
            if math.isfinite(float(found)) and float(found) > 0
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
