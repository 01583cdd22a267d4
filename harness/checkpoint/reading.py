"""The ranks of a node read a checkpoint together: each file by one of them, into memory of them all.

What each rank does is here; what is read, and whether it is used, rank 0 decides (restore.py).
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from harness.checkpoint.arena import Address, Arena, spans
from harness.checkpoint.audit import manifest_of, told_as_damage
from harness.checkpoint.division import readers
from harness.checkpoint.load import Found, read, take
from harness.checkpoint.manifest import STATE, Manifest, Place, UnansweredError
from harness.checkpoint.messages import Channel
from harness.checkpoint.recollection import Recollection
from harness.checkpoint.store import Store


def this_node() -> str:
    """Equal for processes that can see each other's memory: those of one kernel and one namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116  # it is no file


class Reader:
    """One rank's part in reading checkpoints, one after the other; `close` lets go of the last.

    `alive` is called for each portion that it reads, by whichever thread does. Not while it waits:
    a rank that waits must not look busier than the one that it waits for, or no one notices that.
    """

    def __init__(
        self,
        store: Store,
        channel: Channel,
        rank: int,
        deadline_s: float,
        alive: Callable[[], None],
        memory: Recollection,
    ) -> None:
        self._store = store
        self.memory = memory
        self._channel = channel
        self._rank = rank
        self._deadline_s = deadline_s
        self._alive = alive
        self._arena: Arena | None = None
        self._place: Place | None = None

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def read(
        self, place: Place, number: int, ranks: Sequence[int], manifest: Manifest | None = None
    ) -> None:
        """Read this rank's files of a checkpoint, as one of `ranks` on this node.

        `number` is the same on all ranks and no other checkpoint's. Raises `DamagedError`, and
        `SilenceError` if the first of `ranks`, which makes the memory, is not heard of.
        """
        self.close()
        self.memory.resumed = None
        key = f"arena/{number}/{ranks[0]}"
        if self._rank == ranks[0]:
            self._arena = self._made(place, key, ranks, manifest)
        else:
            self._arena = self._joined(key, ranks)
        self._place = place
        if self._arena is not None:  # else the first of us says why there is none
            sizes = {name: file.size for name, file in self._arena.manifest.files.items()}
            mine = readers(sizes, ranks)[self._rank]
            read(self._store, place, self._arena, mine, self._alive)

    def recall(
        self,
        place: Place,
        number: int,
        ranks: Sequence[int],
        known: tuple[Manifest, bytes] | None = None,
    ) -> None:
        """Take this rank's share out of memory; otherwise as `read`. Rank 0 has what is `known` of all."""
        self.close()
        key = f"arena/{number}/{ranks[0]}"
        if known is None:
            self._arena = self._joined(key, ranks)
        else:
            manifest, state = known
            self._arena = self._made(place, key, ranks, manifest)
            where = spans(manifest, self._arena.layout)
            self._arena.sink(where[STATE])(0, memoryview(state))
        self._place = place
        if self._arena is not None:
            self.memory.pour(place, self._arena)

    def build(self) -> Found:
        """The state of this rank, out of what all have read. Raises `DamagedError`."""
        assert self._arena is not None, "every rank reported that it has read"
        assert self._place is not None
        return take(self._arena, self._place, self._rank)

    def close(self) -> None:
        """Let go of the memory, as far as no state that was built keeps it."""
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def _made(
        self, place: Place, key: str, ranks: Sequence[int], manifest: Manifest | None
    ) -> Arena:
        """Memory for all ranks of this node; they are told where it is, or that there is none."""
        try:
            with told_as_damage():
                arena = Arena.create(manifest or manifest_of(self._store, place), ranks)
        except BaseException:
            self._channel.post(key, b"")
            raise
        self._channel.post(key, msgspec.json.encode(arena.address))
        return arena

    def _joined(self, key: str, ranks: Sequence[int]) -> Arena | None:
        _, message = self._channel.hear(key, within_s=self._deadline_s)
        if not message:
            return None
        try:
            return Arena.open(msgspec.json.decode(message, type=Address), ranks)
        except OSError as error:
            reason = f"the memory that rank {ranks[0]} made cannot be opened: {error}"
            raise UnansweredError(reason) from error
