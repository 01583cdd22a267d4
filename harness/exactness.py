"""Pins everything outside the state that decides a run's bits: switches, streams, bucket layout.

A resumed run equals the one that never stopped only if both compute in the same order, with the
same streams, under the same switches. This file sets them, writes them down and compares them.
"""

import os
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

from harness.buckets import reductions, settle_buckets
from harness.digest import digest

__all__ = [
    "capture_rng",
    "changed",
    "fingerprint",
    "mismatches",
    "pin",
    "reductions",
    "restore_rng",
    "rng_digest",
    "seed_all",
    "settle_buckets",
    "switches",
    "threads_for",
]

# What torch leaves without types.
_CUDA: Any = torch.cuda
_CUDNN: Any = torch.backends.cudnn
_DETERMINISTIC: Any = torch.utils.deterministic

# ── random streams ──────────────────────────────────────────────────────────────────────────────


def seed_all(seed: int, rank: int, step: int = 0) -> None:
    """Start Python's, NumPy's and torch's global streams of this rank.

    They differ by rank, and by `step`: a rank that joins a run later must not replay the draws of
    its beginning. They do not depend on the number of ranks.
    """
    python, numpy, torch_cpu = np.random.SeedSequence([seed, rank, step]).spawn(3)
    random.seed(int.from_bytes(python.generate_state(4).tobytes(), "little"))
    np.random.seed(numpy.generate_state(4))  # the global stream is the one users draw from
    seed_torch = torch.manual_seed if _CUDA.is_available() else torch.default_generator.manual_seed
    seed_torch(
        int(torch_cpu.generate_state(1, np.uint64)[0])
    )  # the former seeds CUDA's streams too


def capture_rng() -> dict[str, Any]:
    """The state of the global streams of this process, CUDA's of the current device included."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    assert isinstance(keys, np.ndarray)
    return {
        "python": {
            "version": version,
            "words": torch.from_numpy(np.array(words, dtype=np.int64)),
            "gauss": gauss,
        },
        "numpy": {
            "name": name,
            "keys": torch.from_numpy(keys.astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "gauss": float(cached),
        },
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if _CUDA.is_initialized() else None,
    }


def rng_digest() -> str:
    """The digest of `capture_rng()`."""
    return digest(capture_rng())


def restore_rng(tree: Mapping[str, Any]) -> None:
    """Continue the streams from where `capture_rng` found them.

    A CUDA stream is continued where there is one on both sides.
    """
    python, numpy = tree["python"], tree["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(
        (
            numpy["name"],
            numpy["keys"].cpu().numpy().astype(np.uint32),
            numpy["position"],
            numpy["has_gauss"],
            numpy["gauss"],
        )
    )
    torch.set_rng_state(tree["torch"].cpu())
    if tree["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(tree["cuda"].cpu())


# ── switches ────────────────────────────────────────────────────────────────────────────────────

_WORKSPACES = (":4096:8", ":16:8")
"""Values of CUBLAS_WORKSPACE_CONFIG under which cuBLAS documents equal bits from run to run."""

_PINNED: Mapping[str, tuple[str, Callable[[], Any]]] = {
    "deterministic_algorithms": ("True", torch.are_deterministic_algorithms_enabled),
    "deterministic_warn_only": ("False", torch.is_deterministic_algorithms_warn_only_enabled),
    "cudnn.deterministic": ("True", lambda: torch.backends.cudnn.deterministic),
    "cudnn.benchmark": ("False", lambda: torch.backends.cudnn.benchmark),
    "cudnn.conv.fp32_precision": ("ieee", lambda: _CUDNN.conv.fp32_precision),
    "cudnn.rnn.fp32_precision": ("ieee", lambda: _CUDNN.rnn.fp32_precision),
    "float32_matmul_precision": ("highest", torch.get_float32_matmul_precision),
    "cublas_workspace": ("", lambda: os.environ.get("CUBLAS_WORKSPACE_CONFIG", "unset")),
}
"""What `pin` sets, to what, and how it is read. The workspace may have either documented value."""

_RECORDED: Mapping[str, Callable[[], Any]] = {
    "threads": torch.get_num_threads,
    "default_dtype": torch.get_default_dtype,
    "mkldnn": lambda: torch.backends.mkldnn.enabled,
    "bf16_reduction": lambda: (
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    ),
}
"""What users may set as they like, the same way at every start."""


def threads_for(wanted: int, local_world_size: int) -> int:
    """Intra-op threads of a rank: `wanted`, or for 0 its part of the cores that it may run on."""
    return wanted or max(1, len(os.sched_getaffinity(0)) // local_world_size)


def pin(threads: int, device: torch.device | str, exact: bool = True) -> dict[str, str]:
    """Fix the number of intra-op threads and, if `exact`, every switch that can change bits.

    An operation that has no deterministic form raises from then on. Returns the switches as they
    stand, for `changed`. Call it before the first operation on a CUDA device.
    """
    if threads < 1:
        raise ValueError(f"threads = {threads} is below 1: resolve 0 with threads_for")
    torch.set_num_threads(threads)
    if exact:
        torch.use_deterministic_algorithms(True, warn_only=False)
        # Filling fresh memory only serves to find programs that read it, and costs a few per cent.
        _DETERMINISTIC.fill_uninitialized_memory = False
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        torch.set_float32_matmul_precision("highest")
        _CUDNN.conv.fp32_precision = "ieee"
        _CUDNN.rnn.fp32_precision = "ieee"
        if torch.device(device).type == "cuda":
            _pin_workspace()
    return switches()


def _pin_workspace() -> None:
    """Fix the size of cuBLAS' workspace: its order of summation depends on it."""
    found = os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", _WORKSPACES[0])
    if found not in _WORKSPACES:
        raise ValueError(
            f"CUBLAS_WORKSPACE_CONFIG = {found!r}, and cuBLAS repeats its bits only with"
            f" {' or '.join(_WORKSPACES)}: unset it, or run with exact = false"
        )


def switches() -> dict[str, str]:
    """The present reading of every switch that can change bits."""
    readers = {name: read for name, (_, read) in _PINNED.items()} | dict(_RECORDED)
    return {name: _reading(read) for name, read in readers.items()}


def _reading(read: Callable[[], Any]) -> str:
    try:
        return str(read())
    except RuntimeError as error:  # torch refuses to read precisions that were set in two ways
        return f"unreadable: {str(error).splitlines()[0]}"


def changed(pinned: Mapping[str, str]) -> list[str]:
    """A line for each switch that no longer is as `pin` left it."""
    now = switches()
    return [
        f"{name} was {value} when the run started and is {now.get(name)} now:"
        " set it before join(), and leave it alone from there on"
        for name, value in pinned.items()
        if now.get(name) != value
    ]


# ── the fingerprint ─────────────────────────────────────────────────────────────────────────────

_NCCL_ORDER = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")
"""What decides in which order NCCL adds, where somebody sets it."""

_WAYS_OUT: Mapping[str, str] = {
    "torch": "install the saved version",
    "threads": "set threads (HARNESS_THREADS) to the saved number",
    "world_size": "start as many ranks as before",
    "device": "use the saved kind of device",
    "device_name": "use the saved kind of device",
    "cpu": "use a machine with the saved instruction set, or set ATEN_CPU_CAPABILITY",
}


def fingerprint(
    device: torch.device | str, world_size: int, reductions: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Everything outside the state that decides a run's bits, by name, as text.

    `reductions` is what `reductions` says of the job's DDPs.
    """
    device = torch.device(device)
    return {
        "torch": str(torch.__version__),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": device.type,
        "world_size": str(world_size),
        "backend": str(dist.get_backend()) if dist.is_initialized() else "none",
        **switches(),
        **(_cuda(device) if device.type == "cuda" else {}),
        **({} if reductions is None else reductions),
    }


def _cuda(device: torch.device) -> dict[str, str]:
    return {
        "device_name": torch.cuda.get_device_name(device),
        "cuda": str(torch.version.cuda),
        "cudnn": str(_CUDNN.version()),
        "nccl": str(_CUDA.nccl.version()),
    } | {name: os.environ.get(name, "unset") for name in _NCCL_ORDER}


def mismatches(saved: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """A line for each entry of two fingerprints that differs, with the way out."""
    return [
        f"{name} was {saved.get(name, 'not set')} when the state was saved and is"
        f" {now.get(name, 'not set')} now: {_WAYS_OUT.get(name, 'set it as it was')},"
        " or run with exact = false"
        for name in [*saved, *(name for name in now if name not in saved)]
        if saved.get(name) != now.get(name)
    ]
