"""NCCL's flight recorder: what each rank's last collectives were, written when the launcher asks.

torch opens a pipe for that in a process that has both variables set; on a CPU there is none. The
recorder itself is switched on by whoever sets the size of its buffer.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Set by the user: how many collectives it keeps; the newer name first."""
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
FILE = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
WITHIN_S = 2.0
LOOK_S = 0.02


def is_on(environ: Mapping[str, str]) -> bool:
    """True where ranks with these variables record their collectives."""
    return any(environ.get(size, "0") not in ("", "0") for size in SIZES)


def variables(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What a rank must be told for its recorder to write into `folder`; nothing where it is off."""
    if not is_on(environ):
        return {}
    return {PIPE: str(folder / "nccl-pipe-"), FILE: str(folder / "nccl-")}


def ask(folder: Path, ranks: Sequence[int], within_s: float = WITHIN_S) -> None:
    """Have the recorders of `ranks` write to `folder`, and wait for them, but not for long."""
    asked = [folder / f"nccl-{rank}" for rank in ranks if _write(folder / f"nccl-pipe-{rank}.pipe")]
    deadline = time.monotonic() + within_s
    while not all(path.exists() for path in asked) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    for path in folder.glob("nccl-pipe-*.pipe"):
        path.unlink()


def _write(pipe: Path) -> bool:
    """True if somebody listens at `pipe`."""
    with suppress(OSError):
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.write(descriptor, b"1\n") > 0
        finally:
            os.close(descriptor)
    return False
