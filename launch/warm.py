"""What is imported once, before the fork server is forked, so that no rank has to import it again.

Measured on two cores: `import torch` takes 2 to 8 s, and `torch._dynamo`, which DDP's constructor and
torch's agent import when they first need it, 2 to 7 s more. A fork takes 5 ms.
"""

import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from launch import processes

MODULES = (
    "torch",
    "torch._dynamo",
    "torch.distributed.run",
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
    "torch.nn.parallel",
    "torch.profiler",
    "torch.utils.data",
    "numpy",
    "numpy.ma",  # numpy.unique imports it when it is first called
    "fsspec.implementations.chained",
    "harness.data",
    "harness.job",
)


def keep_to_one_thread() -> str | None:
    """Before the first import: have no library start threads; gives what OMP_NUM_THREADS was.

    NumPy starts one when it is imported, and a fork takes no thread along.
    """
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    return threads


def load() -> None:
    """Import what the launcher and every rank need."""
    for name in MODULES:
        importlib.import_module(name)


def preload(names: Iterable[str], folder: str) -> dict[str, str]:
    """Import what the user named with `--preload`, from the script's and the current folder too.

    Gives what is wrong with each module that stands in the way of a fork; it is imported all the
    same. Raises `ImportError` that names one that cannot be imported.
    """
    searched = [folder, str(Path.cwd())]
    sys.path[:0] = searched
    harmful: dict[str, str] = {}
    try:
        for name in names:
            before = _state()
            try:
                importlib.import_module(name)
            except (Exception, SystemExit) as error:
                raise ImportError(f"{name}: {type(error).__name__}: {error}") from error
            if harm := _harm(before, _state()):
                harmful[name] = harm
    finally:
        for entry in searched:
            sys.path.remove(entry)
    return harmful


def _state() -> tuple[int, bool]:
    return processes.count_threads(), processes.holds_accelerator() or _cuda_is_initialized()


def _harm(before: tuple[int, bool], after: tuple[int, bool]) -> str:
    threads, touched = after[0] - before[0], after[1] and not before[1]
    if threads > 0:
        return f"it starts {'a thread' if threads == 1 else f'{threads} threads'}, which no fork takes along"
    return "it touches CUDA, which no fork survives" if touched else ""


def obstacle() -> str:
    """Why ranks cannot be forked from this process; empty if they can."""
    threads = processes.count_threads()
    if threads > 1:
        return f"the launcher runs {threads} threads after its imports, and a fork takes one along"
    if processes.holds_accelerator() or _cuda_is_initialized():
        return "an import touched CUDA, which a fork does not survive"
    return ""


def _cuda_is_initialized() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
