"""Everything about the order of data that a training script needs, under one name."""

from harness.batches import Batches
from harness.items import SampleIndex, SeededItems
from harness.order import permutation
from harness.sampler import ResumableSampler

__all__ = ["Batches", "ResumableSampler", "SampleIndex", "SeededItems", "permutation"]
