"""Decides which samples come next on which rank: a position that is one integer.

The data are an endless sequence, epoch after epoch; a batch is its next stretch, whoever asks and on
however many ranks. The position counts samples consumed over all ranks, not drawn.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import distributed as dist

from harness.items import SampleIndex
from harness.order import permutation

_BLOCK = 256
"""Samples whose order is computed at once: for one alone it costs nearly as much."""


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
        return place("RANK", dist.get_rank, alone=0) if self._rank is None else self._rank

    @property
    def world_size(self) -> int:
        """How many ranks share each batch."""
        if self._world_size is None:
            return place("WORLD_SIZE", dist.get_world_size, alone=1)
        return self._world_size

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
        stride = self.batch_size // self.micro_batches
        ahead = max(1, _BLOCK // size) * stride
        within = self.rank * size + np.arange(size, dtype=np.int64)
        while True:
            starts = np.arange(position, position + ahead, stride, dtype=np.int64)
            for ids, epochs in zip(*self._samples(starts[:, None] + within), strict=True):
                if restarts != self.restarts:
                    raise RuntimeError(
                        "this iterator over the sampler is stale, for a later one was begun or a"
                        " state was loaded: take a new iterator"
                    )
                self._drawn.append(ids)
                yield [
                    SampleIndex(index, epoch)
                    for index, epoch in zip(ids.tolist(), epochs.tolist(), strict=True)
                ]
            position += ahead

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
        """Move on by the oldest batch drawn; the ids of this rank's samples in it.

        Raises `RuntimeError` if none is left.
        """
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


def place(variable: str, ask: Callable[[], int], alone: int) -> int:
    """What the process group says; before there is one, the environment; else `alone`."""
    if dist.is_available() and dist.is_initialized():
        return ask()
    return int(os.environ.get(variable, alone))
