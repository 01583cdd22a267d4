"""What the training loop takes its batches from; here a batch counts as consumed, and not before."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed as dist
from torch.utils.data import DataLoader

from harness.sampler import ResumableSampler, place
from harness.shield import shield
from harness.slots import Stage

LOG = logging.getLogger("harness")
Batch = TypeVar("Batch")


class Batches(Generic[Batch]):
    """An endless iterator over a loader that counts what is consumed, not what is prefetched.

    Where the loader draws by a `ResumableSampler`, a state loaded into it takes effect with the
    next batch. Other loaders are begun again when they end or fail. A `DataLoader` without a generator
    gets one, for it would draw from the global stream whenever it is begun. `enter` hears when a
    batch is waited for, and when it is there.
    """

    def __init__(
        self, loader: Iterable[Batch], enter: Callable[[Stage], None] = lambda _: None
    ) -> None:
        if getattr(loader, "in_order", True) is False:
            raise ValueError(
                "a DataLoader with in_order=False delivers in an order that no run repeats:"
                " leave in_order=True"
            )
        self.loader = loader
        self._enter = enter
        self.sampler = _sampler_of(loader)
        self._iterator: Iterator[Batch] | None = None
        self._restarts = -1
        self._ids: list[NDArray[np.int64]] = []
        self._generator: torch.Generator | None = None
        if isinstance(loader, DataLoader):
            shield(loader)
        if isinstance(loader, DataLoader) and loader.generator is None:
            self._generator = loader.generator = torch.Generator()
            self._seed([0, place("RANK", dist.get_rank, alone=0)])

    def __iter__(self) -> "Batches[Batch]":
        return self

    def __next__(self) -> Batch:
        self._enter(Stage.LOADING)
        if self._stale():
            self._ids.clear()  # of a past that the loaded state knows nothing of
            self._iterator = None
        if self._iterator is None:
            self._begin()
        assert self._iterator is not None
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._begin()
            batch = self._first()
        except Exception:
            # Or the next batch would be the one after it. Where a `ResumableSampler` draws, it is
            # this one again; any other loader is begun anew, from its first batch.
            self._iterator = None
            raise
        if self.sampler is not None:
            self._ids.append(self.sampler.consumed())
        self._enter(Stage.COMPUTING)
        return batch

    def keepers(self) -> list[object]:
        """What can know the place in the data; it is in the checkpoints if one of these is."""
        if self.sampler is not None:
            return [self.sampler]
        parts = (
            getattr(self.loader, name, None) for name in ("batch_sampler", "sampler", "dataset")
        )
        return [self.loader, *parts]

    def check_kept(self, holds: Callable[[object], bool], leads: bool) -> None:
        """Refuse, or say on the rank that `leads`, that the place in the data is in no checkpoint.

        `holds` tells what is protected. Raises `ValueError`.
        """
        if any(map(holds, self.keepers())):
            return
        if self.sampler is not None:
            raise ValueError(
                "job.batches draws by a ResumableSampler that is not protected, so a resume would"
                " begin the data anew: add it, as in job.protect(data=sampler)"
            )
        if leads:
            LOG.warning(
                "harness: the place in the data is in no checkpoint, so a resume begins the loader"
                " anew: draw by harness.ResumableSampler, or protect what knows the place"
            )

    def take_ids(self) -> NDArray[np.int64]:
        """Ids of this rank's samples consumed since the last call, in order."""
        ids, self._ids = self._ids, []
        return np.concatenate(ids) if ids else np.empty(0, np.int64)

    def _stale(self) -> bool:
        if self._iterator is None or self.sampler is None:
            return False
        return self.sampler.restarts != self._restarts

    def _begin(self) -> None:
        self._iterator = None  # the old one stops its workers before the new one starts its own
        if self.sampler is not None:
            self._seed([self.sampler.seed, self.sampler.rank, self.sampler.position])
        self._iterator = iter(self.loader)
        if self.sampler is not None:
            self._restarts = self.sampler.restarts

    def _first(self) -> Batch:
        assert self._iterator is not None
        try:
            return next(self._iterator)
        except StopIteration:
            raise ValueError(
                "the loader is empty, it ended without a batch: give it data, or a smaller batch"
            ) from None

    def _seed(self, key: list[int]) -> None:
        """Decide the workers' streams: others on every rank and at every place, the same on resume."""
        if self._generator is not None:
            words = np.random.SeedSequence(key).generate_state(1, np.uint64)
            self._generator.manual_seed(int(words[0]))


def _sampler_of(loader: object) -> ResumableSampler | None:
    for name in ("batch_sampler", "sampler"):
        sampler = getattr(loader, name, None)
        if isinstance(sampler, ResumableSampler):
            return sampler
    return None
