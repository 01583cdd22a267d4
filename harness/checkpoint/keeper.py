"""The memory tier on one rank: a copy is taken for it, and the saver holds what was copied.

Training stops for what must be copied at once; that all of it is whole, labelled, and known to the
saver, a thread of its own sees to.
"""

import threading
from queue import SimpleQueue

from harness.checkpoint import room
from harness.checkpoint.capture import Copier, Taken, Tree
from harness.checkpoint.carriers import Carriers
from harness.checkpoint.manifest import Place
from harness.checkpoint.memory import Memory
from harness.checkpoint.messages import Channel
from harness.checkpoint.tell import Spokesman, said, warn
from harness.events import SaveStarted, SaveUnblocked, Tier


class Keeper:
    """Keeps states for as long as there is a saver to hold them; never, if it is not `on`."""

    def __init__(
        self, copier: Copier, carriers: Carriers, spokesman: Spokesman, *, on: bool
    ) -> None:
        self._copier = copier
        self._carriers = carriers
        self._spokesman = spokesman
        self._on = on
        self._begun: SimpleQueue[tuple[int, Taken] | None] = SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._finish, name="checkpoint-keeper", daemon=True)
        self._thread.start()

    @property
    def is_on(self) -> bool:
        """True while copies are of use after this rank's end."""
        return self._on and self._carriers.apart

    def settle(
        self, channel: Channel, shared: Tree, own: Tree, growth: int, within_s: float
    ) -> None:
        """Do with as many slots as there is memory for, by rank 0's word; with none, keep nothing.

        The state may become `growth` times as large as it is now.
        """
        if not self.is_on:
            return
        try:
            if self._copier.rank == 0:
                slots = self._room(shared, own, growth)
                channel.post("room", str(slots).encode())
            else:
                slots = int(channel.hear("room", within_s=within_s)[1])
        except Exception as error:  # noqa: BLE001  # such as a message store that has gone
            warn(f"rank {self._copier.rank} keeps no copies in memory: {said(error)}")
            slots = 0
        self._on = slots > 0
        self._copier.buffers.limit(max(slots, 1))

    def _room(self, shared: Tree, own: Tree, growth: int) -> int:
        ranks = self._copier.world_size  # they are all on this node
        held_bytes = self._copier.buffers.size_bytes * ranks
        needed_bytes = self._copier.needed(shared, own) * ranks * growth
        found = room.decide(needed_bytes, room.left_bytes() + held_bytes)
        if found.line:
            warn(found.line)
        return found.slots

    def keep(self, place: Place, shared: Tree, own: Tree, busy: Memory | None) -> Taken | None:
        """Begin to copy the state, now; None where that cannot be, which stops nothing."""
        self._spokesman.tell(SaveStarted(place.step, Tier.MEMORY))
        try:
            self.wait()
            taken = self._copier.take(place, shared, own, busy)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise  # the process is asked to end; that is no failure of the copy
        except BaseException as error:  # noqa: BLE001  # some checkpoint errors are no `Exception`
            self._spokesman.fail(place.step, said(error), Tier.MEMORY)
            return None
        finally:
            self._spokesman.tell(SaveUnblocked(place.step, Tier.MEMORY))
        if taken is None:
            self._spokesman.fail(place.step, "its only slot is being written", Tier.MEMORY)
        else:
            self._idle.clear()
            self._begun.put((place.step, taken))
        return taken

    def wait(self) -> None:
        """Come back once the last copy is whole and labelled, or has failed."""
        self._idle.wait()

    def close(self, timeout_s: float) -> None:
        """End the thread."""
        self._begun.put(None)
        self._thread.join(timeout_s)

    def _finish(self) -> None:
        while (begun := self._begun.get()) is not None:
            step, taken = begun
            try:
                taken.finish()
            except BaseException as error:  # noqa: BLE001  # some checkpoint errors are no `Exception`
                self._spokesman.fail(step, said(error), Tier.MEMORY)
                continue
            finally:
                self._idle.set()
            if self.is_on:
                self._carriers.keep(self._copier.buffers.held(), taken.slot)
