"""Gives each sample random streams of its own, so that an item is the same wherever it is made."""

import random
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

Item = TypeVar("Item")


class SampleIndex(int):
    """The index of a sample, which also knows in which epoch it is drawn."""

    epoch: int

    def __new__(cls, index: int, epoch: int) -> "SampleIndex":
        """`index` as an int that carries `epoch` along, to a loader's workers too."""
        self = super().__new__(cls, index)
        self.epoch = epoch
        return self

    def __reduce__(self) -> tuple[type["SampleIndex"], tuple[int, int]]:
        return SampleIndex, (int(self), self.epoch)


class SeededItems(Dataset[Item]):
    """A dataset each of whose items draws from streams of its own, set by seed, epoch and sample.

    So an item is the same in any worker, on any rank, before and after a resume; and another one in
    the next epoch. Python's, NumPy's and torch's CPU streams are set while an item is made, and in
    the training process put back after it. Wrap the outermost dataset, for an index that another
    dataset has mapped does not know its epoch; a plain index counts as of epoch 0.
    """

    def __init__(self, dataset: Any, seed: int = 0) -> None:
        self.dataset = dataset
        self.seed = seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Item:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Item]:
        """A batch at once, as a `DataLoader` asks for it: the streams are put back once."""
        if get_worker_info() is not None:
            return [self._made(index) for index in indices]
        python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
        try:
            return [self._made(index) for index in indices]
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            torch.set_rng_state(cpu)

    def _made(self, index: int) -> Item:
        key = [self.seed, getattr(index, "epoch", 0), int(index)]
        words = np.random.SeedSequence(key).generate_state(3, np.uint64)
        random.seed(int(words[0]))
        np.random.seed(words[1:2].view(np.uint32))
        torch.default_generator.manual_seed(int(words[2]))
        item: Item = self.dataset[index]
        return item
