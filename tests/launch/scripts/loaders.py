"""Reads a data set through worker processes, forked and spawned."""

import json
import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset[torch.Tensor]):
    """n → n², by a class that a spawned worker must find in `__main__`."""

    def __len__(self) -> int:
        """Items."""
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        """One item."""
        return torch.tensor(index * index)


def main() -> int:
    """The sum of all squares, for each way to start workers."""
    sums = {}
    for context in ("fork", "spawn"):
        loader = DataLoader(Squares(), batch_size=2, num_workers=1, multiprocessing_context=context)
        sums[context] = sum(int(batch.sum()) for batch in loader)
    print(json.dumps(sums))
    return 0


if __name__ == "__main__":
    sys.exit(main())
