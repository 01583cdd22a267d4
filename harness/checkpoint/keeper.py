"""The memory tier on one rank: a copy is taken for it, and the saver holds what was copied.

Training stops for what must be copied at once; that all of it is whole, labelled, and known to the
saver, a thread of its own sees to.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from harness.checkpoint import room
from harness.checkpoint.buffers import Buffers
from harness.checkpoint.capture import Copier, Need, Taken, Tree
from harness.checkpoint.carriers import Carriers
from harness.checkpoint.manifest import Place
from harness.checkpoint.memory import Memory
from harness.checkpoint.messages import Channel
from harness.checkpoint.named import Folder
from harness.checkpoint.recollection import Recollection
from harness.checkpoint.slot import DATA, label_of, seal
from harness.checkpoint.tell import Spokesman, said, warn
from harness.events import SaveCommitted, SaveStarted, SaveUnblocked, Tier

_SEALED_WITHIN_S, _LAST_SEALED_WITHIN_S = 30.0, 1.0
_LOOK_S = 0.005
_SHOWN_AGAIN_S = 1.0
"""A saver that came in the place of one that died holds nothing; so long it may stay so."""


def for_memory(rank: int, memory: Recollection | None) -> Buffers:
    """Two slots, made or taken over from the rank before this one."""
    folder = None if memory is None else memory.folder
    buffers = Buffers(2) if folder is None else Buffers(2, partial(_made, folder, rank))
    if memory is not None:
        buffers.adopt(memory.adopt(), *(memory.resumed or (None, -1)))
    return buffers


def _made(folder: Folder, rank: int, slot: int, size_bytes: int) -> Memory:
    """Memory with a name, or without where there is no room for that: saves to the storage need it too."""
    try:
        return folder.make(rank, slot, size_bytes)
    except OSError as error:
        warn(f"a copy has no room in {folder.path} and is taken without a name: {said(error)}")
        memory = Memory(size_bytes)
        memory.nameless = True
        return memory


class Keeper:
    """Keeps states for as long as someone holds them: a saver, or a `folder`. Never, if it is not `on`."""

    def __init__(
        self,
        copier: Copier,
        channel: Channel,
        carriers: Carriers,
        spokesman: Spokesman,
        folder: Folder | None,
        *,
        on: bool,
    ) -> None:
        self._copier = copier
        self._carriers = carriers
        self._spokesman = spokesman
        self._channel = channel
        self._folder = folder
        self._on = on
        self._begun: SimpleQueue[tuple[int, Taken] | None] = SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._untold: list[int] = []
        self._thread = threading.Thread(target=self._finish, name="checkpoint-keeper", daemon=True)
        self._thread.start()

    @property
    def is_on(self) -> bool:
        """True while copies are of use after this rank's end."""
        return self._on and (self._carriers.apart or self._folder is not None)

    def settle(self, need: Callable[[], Need], growth: int, within_s: float) -> None:
        """Do with as many slots as there is memory for, by rank 0's word; with none, keep nothing.

        The state, which comes to `need` now, may become `growth` times as large.
        """
        if not self.is_on:
            return
        buffers = self._copier.buffers
        found = buffers.held()
        slots = self._agreed(partial(self._room, need, growth), within_s)
        self._on = slots > 0
        buffers.limit(max(slots, 1))
        kept = list(buffers.held()) if self._on else []
        if len(kept) < len(found):
            self._let_go(kept)

    def _agreed(self, room: Callable[[], int], within_s: float) -> int:
        """Rank 0's word on the number of slots: none where it cannot tell, and nobody waits for that."""
        if self._copier.rank != 0:
            return self._or_none(lambda: int(self._channel.hear("room", within_s=within_s)[1]))
        slots = self._or_none(room)

        def say() -> int:
            self._channel.post("room", str(slots).encode())
            return slots

        return self._or_none(say)

    def _or_none(self, act: Callable[[], int]) -> int:
        try:
            return act()
        except Exception as error:  # noqa: BLE001  # such as a message store that has gone
            warn(f"rank {self._copier.rank} keeps no copies in memory: {said(error)}")
            return 0

    def _let_go(self, kept: Sequence[int]) -> None:
        """Leave memory of the ranks before us to others, but for these slots."""
        self._carriers.keep_only(kept)
        if self._folder is not None:
            self._folder.keep_only(self._copier.rank, kept)

    def _room(self, need: Callable[[], Need], growth: int) -> int:
        ranks = self._copier.world_size  # they are all on this node
        held_bytes = self._copier.buffers.size_bytes * ranks
        needed_bytes = need().size_bytes * ranks * growth
        left_bytes = room.left_bytes()
        if self._folder is not None:
            left_bytes = min(left_bytes, self._folder.left_bytes())
        found = room.decide(needed_bytes, left_bytes + held_bytes)
        if found.line:
            warn(found.line)
        return found.slots

    def keep(self, place: Place, shared: Tree, own: Tree, busy: Memory | None) -> Taken | None:
        """Begin to copy the state, now; None where that cannot be, which stops nothing.

        The only slot there is may be `busy`: then there is no copy this time.
        """
        if self._copier.buffers.are_all(busy):
            return None
        self._spokesman.tell(SaveStarted(place.step, Tier.MEMORY))
        try:
            self.wait()
            taken = self._copier.take(place, shared, own, busy)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise  # the process is asked to end; that is no failure of the copy
        except BaseException as error:  # noqa: BLE001  # some checkpoint errors are no `Exception`
            self._fail(place.step, error)
            return None
        finally:
            self._spokesman.tell(SaveUnblocked(place.step, Tier.MEMORY))
        assert taken is not None, "a slot is free"
        self._idle.clear()
        self._begun.put((place.step, taken))
        return taken

    def _fail(self, step: int, error: BaseException) -> None:
        """Tell it; a rank for which nobody speaks says it itself."""
        self._spokesman.fail(step, said(error), Tier.MEMORY)
        if self._copier.rank != 0:
            warn(f"rank {self._copier.rank} keeps no copy of step {step}: {said(error)}")

    def wait(self) -> None:
        """Come back once the last copy is whole and labelled, or has failed."""
        self._idle.wait()

    def forget(self) -> None:
        """No copy is to be gone on from any more."""
        self.wait()
        self._copier.buffers.forget()

    def close(self, timeout_s: float, *, over: bool) -> None:
        """End the thread, and take away what has a name if the run is `over`."""
        self._begun.put(None)
        self._thread.join(timeout_s)
        if over and self._folder is not None:
            self._copier.buffers.settle()
            self._folder.remove_rank(self._copier.rank)

    def _finish(self) -> None:
        while (begun := self._next()) is not None:
            step, taken = begun
            try:
                taken.finish()
            except BaseException as error:  # noqa: BLE001  # some checkpoint errors are no `Exception`
                self._fail(step, error)
                continue
            finally:
                self._idle.set()
            if self._carriers.apart:
                self._carriers.keep(self._copier.buffers.held(), taken.slot)
            elif self.is_on and not taken.memory.nameless:  # else it is gone with this process
                self._seal(taken.memory)
        with suppress(Exception):  # the message store may be gone before us
            self._tell_of_whole(_LAST_SEALED_WITHIN_S)

    def _next(self) -> tuple[int, Taken] | None:
        """The next copy that has begun, or the end."""
        while True:
            try:
                return self._begun.get(timeout=_SHOWN_AGAIN_S)
            except Empty:
                if self._carriers.apart and self._on:
                    held = self._copier.buffers.held()
                    # Memory that holds nothing would take the place of what the ranks before left.
                    full = {number: it for number, it in held.items() if label_of(it.view)}
                    self._carriers.keep(full, copied=-1)

    def _seal(self, memory: Memory) -> None:
        """What a saver would do, where there is none."""
        try:
            label = seal(memory.view, memory.descriptor)
            if label is None:
                return
            size = label.begin + label.size_bytes - DATA
            self._channel.append(f"kept/{label.place.step}", str(size).encode())
            if self._copier.rank == 0:
                self._untold = [*self._untold[-1:], label.place.step]  # of two slots
                self._tell_of_whole(_SEALED_WITHIN_S, lambda: not self._begun.empty())
        except Exception as error:  # noqa: BLE001  # the other slot stays, and the storage
            warn(f"what rank {self._copier.rank} copied cannot be sealed: {said(error)}")

    def _tell_of_whole(self, within_s: float, hurry: Callable[[], bool] = lambda: False) -> None:
        """Tell of states of which all ranks have sealed their shares by then; no longer once there is a `hurry`."""
        until_s = time.monotonic() + within_s
        while self._untold and not self._told(self._untold[-1]):
            if hurry() or time.monotonic() >= until_s:
                return
            time.sleep(_LOOK_S)

    def _told(self, newest: int) -> bool:
        """Tell of the states that are whole; True if the `newest` is."""
        for step in self._untold:
            key, ranks = f"kept/{step}", self._copier.world_size
            keys = [f"{key}/{number}" for number in range(1, ranks + 1)]
            if all(self._channel.was_said(one) for one in keys):
                sizes = [int(self._channel.hear(one, within_s=0)[1]) for one in keys]
                self._channel.forget_list(key, ranks)
                self._spokesman.tell(SaveCommitted(step, Tier.MEMORY, sum(sizes)))
                self._untold = [other for other in self._untold if other > step]
        return newest not in self._untold
