"""Decides which sample comes when: an order without a list, a position that is one integer.

The data are an endless sequence, epoch after epoch; a batch is the next stretch of it, whoever
asks and on however many ranks. The position counts samples consumed over all ranks, not drawn.
"""

import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed as dist
from torch.utils.data import DataLoader, get_worker_info

Item = TypeVar("Item")
Batch = TypeVar("Batch")

# ── the order of an epoch ───────────────────────────────────────────────────────────────────────

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_SHIFT = np.uint64(33)


def permutation(
    indices: NDArray[np.int64], length: int, *, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Where each of `indices` comes in the shuffled order of range(`length`), without a list.

    A Feistel network (Luby and Rackoff 1988) permutes the numbers of just enough bits; those that
    land outside the range walk on until they land in it (Black and Rogaway 2002), which keeps it
    one to one.
    """
    if length == 1:
        return np.zeros_like(indices)
    bits = max(4, (length - 1).bit_length())
    keys = _round_keys(seed, epoch)
    found = indices.astype(np.uint64)
    outside = np.ones(found.shape, dtype=np.bool_)
    while outside.any():
        found[outside] = _feistel(found[outside], bits, keys)
        outside = found >= length
    return found.astype(np.int64)


def _feistel(values: NDArray[np.uint64], bits: int, keys: tuple[np.uint64, ...]) -> Any:
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << bits // 2) - 1)
    high_mask = np.uint64((1 << bits - bits // 2) - 1)
    low, high = values & low_mask, values >> low_bits
    for even, odd in zip(keys[::2], keys[1::2], strict=True):
        low = low ^ (_mixed(high ^ even) & low_mask)
        high = high ^ (_mixed(low ^ odd) & high_mask)
    return (high << low_bits) | low


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """MurmurHash3's 64-bit finaliser: every bit of the input moves about half of the output's."""
    for multiplier in _MULTIPLIERS:
        values = (values ^ (values >> _SHIFT)) * multiplier
    return values ^ (values >> _SHIFT)


@lru_cache(maxsize=8)
def _round_keys(seed: int, epoch: int) -> tuple[np.uint64, ...]:
    return tuple(np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64))


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


# ── the sampler ─────────────────────────────────────────────────────────────────────────────────


class ResumableSampler:
    """Draws this rank's micro-batches without end; for `DataLoader(batch_sampler=…)`.

    `batch_size` counts the samples of one optimizer step over all ranks and micro-batches. Rank r
    takes the r-th of `world_size` equal slices of each micro-batch, so the order of all samples
    is the same on any number of ranks. A batch may begin in one epoch and end in the next: each
    sample comes exactly once an epoch, and every batch is full. Rank and world size come from the
    process group or the environment where they are not given. With `static_batch` off, a state
    saved with another `batch_size` is taken as well.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        micro_batches: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        static_batch: bool = True,
    ) -> None:
        self.length = length
        self.batch_size = batch_size
        self.micro_batches = micro_batches
        self.seed = seed
        self.shuffle = shuffle
        self.static_batch = static_batch
        self.position = 0
        """Samples consumed since the start of training, over all ranks."""
        self.restarts = 0
        """Rises whenever batches drawn so far stop counting; an older iterator is stale then."""
        self._rank = rank
        self._world_size = world_size
        self._drawn: deque[NDArray[np.int64]] = deque()
        self._check()

    def _check(self) -> None:
        wrong = [
            f"{name} = {value} is below {least}"
            for name, value, least in (
                ("length", self.length, 1),
                ("batch_size", self.batch_size, 1),
                ("micro_batches", self.micro_batches, 1),
                ("seed", self.seed, 0),
            )
            if value < least
        ]
        if wrong:
            raise ValueError("\n".join(wrong))
        self._samples_per_draw()

    @property
    def rank(self) -> int:
        """This process' rank."""
        return _placed(self._rank, "RANK", dist.get_rank, 0)

    @property
    def world_size(self) -> int:
        """How many ranks share each batch."""
        return _placed(self._world_size, "WORLD_SIZE", dist.get_world_size, 1)

    @property
    def epoch(self) -> int:
        """The epoch of the next sample."""
        return self.position // self.length

    def __iter__(self) -> Iterator[list[SampleIndex]]:
        """Draw from the present position on. Whatever was drawn before no longer counts."""
        self._restart()
        return self._draw(self.restarts, self.position)

    def _restart(self) -> None:
        self._drawn.clear()
        self.restarts += 1

    def _draw(self, restarts: int, position: int) -> Iterator[list[SampleIndex]]:
        size = self._samples_per_draw()
        offset = self.rank * size
        while True:
            if restarts != self.restarts:
                raise RuntimeError(
                    "this iterator over the sampler is stale, for a later one was begun or a state"
                    " was loaded: take a new iterator"
                )
            start = position + offset
            ids, epochs = self._samples(np.arange(start, start + size, dtype=np.int64))
            self._drawn.append(ids)
            yield [
                SampleIndex(index, epoch)
                for index, epoch in zip(ids.tolist(), epochs.tolist(), strict=True)
            ]
            position += self.batch_size // self.micro_batches

    def _samples(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sample id and epoch at each of `positions` of the endless sequence."""
        epochs, ids = np.divmod(positions, self.length)
        if self.shuffle:
            for epoch in np.unique(epochs):
                of_epoch = epochs == epoch
                ids[of_epoch] = permutation(
                    ids[of_epoch], self.length, seed=self.seed, epoch=int(epoch)
                )
        return ids, epochs

    def _samples_per_draw(self) -> int:
        parts = self.world_size * self.micro_batches
        if self.batch_size % parts:
            raise ValueError(
                f"batch_size = {self.batch_size} cannot be divided over {self.world_size} rank(s)"
                f" times {self.micro_batches} micro-batch(es): choose a multiple of {parts}, or"
                " other ranks or micro-batches"
            )
        return self.batch_size // parts

    def consumed(self) -> NDArray[np.int64]:
        """Move on by the oldest batch drawn; the ids of this rank's samples in it."""
        if not self._drawn:
            raise RuntimeError("no batch was drawn that has not been consumed")
        self.position += self.batch_size // self.micro_batches
        return self._drawn.popleft()

    def state_dict(self) -> dict[str, int | bool]:
        """The position, and what gives it its meaning."""
        return {
            "position": self.position,
            "length": self.length,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
        }

    def differences(self, state: Mapping[str, Any]) -> list[str]:
        """A line for each reason why `state` belongs to another order of samples."""
        own = self.state_dict()
        if set(own) != set(state):
            return [f"holds {', '.join(own)} and the saved state {', '.join(state)}"]
        fixed = [name for name in _WAYS_OUT if name != "batch_size" or self.static_batch]
        return [
            f"{name} is {own[name]} and was {state[name]}: {_WAYS_OUT[name]}"
            for name in fixed
            if own[name] != state[name]
        ]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved position; live iterators are stale from here on.

        Raises `ValueError` that lists every difference, and changes nothing then.
        """
        if wrong := self.differences(state):
            raise ValueError("\n".join(wrong))
        self._restart()
        self.position = state["position"]


_WAYS_OUT: Mapping[str, str] = {
    "length": "resume with the data that the run was started with",
    "batch_size": "keep the samples per optimizer step, over all ranks and micro-batches",
    "seed": "keep the seed",
    "shuffle": "keep the order",
}


def _placed(given: int | None, variable: str, ask: Callable[[], int], alone: int) -> int:
    """What was given; else what the process group says; else the environment; else `alone`."""
    if given is not None:
        return given
    if dist.is_available() and dist.is_initialized():
        return ask()
    return int(os.environ.get(variable, alone))


# ── random draws of an item ─────────────────────────────────────────────────────────────────────


class SeededItems(Generic[Item]):
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
        if get_worker_info() is not None:
            return self._made(index)
        python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
        try:
            return self._made(index)
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


# ── what the loop iterates over ─────────────────────────────────────────────────────────────────


class Batches(Generic[Batch]):
    """An endless iterator over a loader that counts what is consumed, not what is prefetched.

    Where the loader draws by a `ResumableSampler`, a state loaded into it takes effect with the
    next batch. Other loaders are begun again when they end. A `DataLoader` without a generator
    gets one, for it would draw from the global stream at every start of an iteration.
    """

    def __init__(self, loader: Iterable[Batch]) -> None:
        if getattr(loader, "in_order", True) is False:
            raise ValueError(
                "a DataLoader with in_order=False delivers in an order that no run repeats:"
                " leave in_order=True"
            )
        self.loader = loader
        self.sampler = _sampler_of(loader)
        self._iterator: Iterator[Batch] | None = None
        self._restarts = -1
        self._ids: list[NDArray[np.int64]] = []
        self._own_generator = isinstance(loader, DataLoader) and loader.generator is None

    def __iter__(self) -> "Batches[Batch]":
        return self

    def __next__(self) -> Batch:
        if self._iterator is None or self._stale():
            self._begin()
        assert self._iterator is not None
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._begin()
            batch = self._first()
        if self.sampler is not None:
            self._ids.append(self.sampler.consumed())
        return batch

    def take_ids(self) -> NDArray[np.int64]:
        """Ids of this rank's samples consumed since the last call, in order."""
        ids, self._ids = self._ids, []
        return np.concatenate(ids) if ids else np.empty(0, np.int64)

    def _stale(self) -> bool:
        return self.sampler is not None and self.sampler.restarts != self._restarts

    def _begin(self) -> None:
        self._iterator = None  # the old one stops its workers before the new one starts its own
        if self._own_generator:
            assert isinstance(self.loader, DataLoader)
            self.loader.generator = self._generator()
        self._iterator = iter(self.loader)
        if self.sampler is not None:
            self._restarts = self.sampler.restarts

    def _first(self) -> Batch:
        assert self._iterator is not None
        try:
            return next(self._iterator)
        except StopIteration:
            raise ValueError("the loader is empty: it ended without a batch") from None

    def _generator(self) -> torch.Generator:
        """Seeds the workers' streams: others at every start, on every rank, the same on resume."""
        key = [0, 0, 0]
        if self.sampler is not None:
            key = [self.sampler.seed, self.sampler.rank, self.sampler.position]
        words = np.random.SeedSequence(key).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(words[0]))


def _sampler_of(loader: object) -> ResumableSampler | None:
    for name in ("batch_sampler", "sampler"):
        sampler = getattr(loader, name, None)
        if isinstance(sampler, ResumableSampler):
            return sampler
    return None
