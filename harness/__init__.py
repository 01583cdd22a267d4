"""What a training script imports. Names load when first used, so reading a log never loads torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.data import ResumableSampler, SeededItems
    from harness.job import Job, join

_HOME = {
    "Job": "harness.job",
    "ResumableSampler": "harness.data",
    "SeededItems": "harness.data",
    "join": "harness.job",
}

__all__ = ["Job", "ResumableSampler", "SeededItems", "join"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'harness' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
