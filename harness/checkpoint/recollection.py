"""What the ranks before left in memory, as the ranks after them find it at a saver.

Used is a state of which every rank's share is there, whole and sealed, and divided as it would be now;
everything else is as good as not there, and the storage has the word.
"""

import os
from collections.abc import Sequence

import xxhash

from harness.checkpoint import slot
from harness.checkpoint.arena import Arena, spans
from harness.checkpoint.audit import told_as_damage
from harness.checkpoint.borrowing import Loan, borrow, opened
from harness.checkpoint.commit import merged, state_of
from harness.checkpoint.manifest import (
    SCHEMA,
    STATE,
    DamagedError,
    FileRecord,
    Manifest,
    Place,
    check,
    record,
)
from harness.checkpoint.memory import Memory
from harness.checkpoint.named import Folder
from harness.checkpoint.share import report
from harness.checkpoint.slot import Kept
from harness.checkpoint.tell import said, warn
from harness.events import Rejection
from harness.points import Point, reach

_PORTION_BYTES = 256 << 10


class Recollection:
    """One rank's view of what is in memory; asked for once, when it is needed first.

    Savers at `addresses` are asked in turn; the first that answers has all there is.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        run_id: str,
        rank: int,
        world_size: int,
        folder: Folder | None = None,
    ) -> None:
        """Where no saver has anything, the files in `folder` are looked at."""
        self.folder = folder
        self._addresses = addresses
        self._run_id = run_id
        self._rank = rank
        self._world_size = world_size
        self._loans: list[Loan] | None = None
        self.resumed: tuple[int, int] | None = None
        """The slot of this rank that the state was taken from, and its step."""

    def places(self) -> list[Place]:
        """States of which every rank's share is there, for rank 0 to choose from."""
        found = self._kept()
        if not found and (others := {kept.label.world_size for kept in self._whole()}):
            warn(
                f"copies in memory are those of {max(others)} ranks, and there are {self._world_size}"
                " now: they are not used, only what is in the storage"
            )
        return list(slot.whole(found))

    def manifest(self, place: Place) -> tuple[Manifest, bytes]:
        """What the shares at `place` make up, and its state. Raises `DamagedError`."""
        # A last save may have been copied twice: then both slots of a rank hold the same state.
        shares = {kept.label.rank: kept for kept in self._kept() if kept.label.place == place}
        kepts = [shares[rank] for rank in sorted(shares)]
        if len({kept.about.share.layout for kept in kepts}) > 1:
            raise DamagedError(Rejection.TORN, "the shares are not of one state")
        reports = [report(kept.about.share, _files(kept)) for kept in kepts]
        state = state_of(reports)
        files = {name: file for one in reports for name, file in one.files.items()}
        manifest = Manifest(
            schema=SCHEMA,
            run_id=self._run_id,
            step=place.step,
            attempt=place.attempt,
            world_size=self._world_size,
            fingerprint=kepts[0].about.fingerprint,
            files={**files, STATE: record(state)},
            tensors=merged(reports),
        )
        return manifest, state

    def pour(self, place: Place, arena: Arena) -> None:
        """Put this rank's share into the arena, and count it. Raises `DamagedError`."""
        with told_as_damage():
            kept = self._mine(place, arena.manifest)
            where = spans(arena.manifest, arena.layout)
            for shard in kept.about.share.shards:
                content = kept.memory[shard.begin : shard.begin + shard.size_bytes]
                sink = arena.sink(where.get(shard.name, ()))
                counted = xxhash.xxh3_128()
                for begin in range(0, len(content), _PORTION_BYTES):
                    portion = content[begin : begin + _PORTION_BYTES]
                    counted.update(portion)
                    sink(begin, portion)
                reach(Point.RESTORE_READ)
                found = FileRecord(len(content), counted.hexdigest())
                check(found, arena.manifest.files[shard.name], shard.name)
        loans = self._loans or ()
        slots = (loan.slot for loan in loans if loan.view is kept.memory)
        self.resumed = (next(slots), place.step)

    def _mine(self, place: Place, manifest: Manifest) -> Kept:
        """This rank's copy: of two of one state, the one that is in the manifest."""
        mine = [kept for kept in self._kept(self._rank) if kept.label.place == place]
        if not mine:
            raise DamagedError(Rejection.MISSING, "this rank's share is not in memory")
        return max(mine, key=lambda kept: _files(kept).items() <= manifest.files.items())

    def adopt(self) -> dict[int, Memory]:
        """This rank's memories, to go on with; but for one that a save is being written out of."""
        mine = [it for it in self._lent() if it.rank == self._rank and not it.busy]
        return {loan.slot: Memory.of(os.dup(loan.descriptor)) for loan in mine}

    def close(self) -> None:
        """Give back what was lent; what was adopted stays."""
        for loan in self._loans or ():
            os.close(loan.descriptor)
        self._loans = []

    def _kept(self, rank: int | None = None) -> list[Kept]:
        """Copies of this run that are whole, made by as many ranks as there are now."""
        whole = self._whole(rank)
        return [kept for kept in whole if kept.label.world_size == self._world_size]

    def _whole(self, rank: int | None = None) -> list[Kept]:
        """The same of any number of ranks."""
        found = [slot.kept(loan.view) for loan in self._lent() if rank in (None, loan.rank)]
        return [kept for kept in found if kept is not None and kept.label.run_id == self._run_id]

    def _lent(self) -> list[Loan]:
        if self._loans is None:
            self._loans = []
            whose = None if self._rank == 0 else self._rank
            addresses = [*dict.fromkeys(self._addresses)]
            # While an earlier saver lends, the later one may have taken all over: that is asked again.
            for address in (*addresses, *addresses[:-1]):
                try:
                    for loan in borrow(address, self._run_id, whose):
                        self._loans.append(loan)
                    break
                except (OSError, EOFError, ValueError) as error:
                    self.close()  # what came before the saver went is not all of it
                    if not isinstance(error, ConnectionRefusedError):
                        warn(f"what is in memory cannot be had: {said(error)}")
            if not self._loans and self.folder is not None:
                self._loans = list(opened(self.folder, whose))
        return self._loans


def _files(kept: Kept) -> dict[str, FileRecord]:
    names = [shard.name for shard in kept.about.share.shards]
    return dict(zip(names, kept.files, strict=True))
