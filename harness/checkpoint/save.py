"""Saves the state while training goes on: what a rank's training thread sees of it.

Training stops for the copy and nothing else; what is copied, a carrier makes durable. When a save is
due, rank 0 says for all whether it begins now; if one is still in flight, all ask again at each
boundary, so that the newest state is the one that is saved. No failure of a save ever reaches training.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial

from harness.checkpoint.agreement import SIGN_OF_LIFE_S, Agreement
from harness.checkpoint.buffers import Buffers, copy
from harness.checkpoint.capture import Copier, Taken, Tree
from harness.checkpoint.carriers import Carriers
from harness.checkpoint.keeper import Keeper, for_memory
from harness.checkpoint.manifest import Place
from harness.checkpoint.messages import Channel, Messages
from harness.checkpoint.overlap import Overlap
from harness.checkpoint.policy import Answer, due
from harness.checkpoint.recollection import Recollection
from harness.checkpoint.store import Store
from harness.checkpoint.tell import Records, Spokesman, said, warn
from harness.checkpoint.upkeep import sweep
from harness.checkpoint.vouching import Vouching
from harness.checkpoint.wire import Hello
from harness.checkpoint.words import Reply
from harness.checkpoint.writer import Writer
from harness.events import SaveStarted, SaveUnblocked, Tier
from harness.signals.unsound import UnsoundStateError
from harness.slots import Mark, SlotWriter

_CLOSE_S = 5.0
_HANDOVER_S = 1.0
"""How long this rank's thread may take to hear that a save has ended which rank 0 knows to have."""


class Checkpointer:
    """Saves by policy. Each rank has one and calls it at every step boundary.

    The saver at `saver` writes; where that is empty or gone for good, a thread of this process does.
    It also holds what is copied every `memory_every` steps (None: nothing) in what `memory` had from
    ranks before us. The recorder is used on rank 0 alone; `slot`, where given, shows the launcher that this rank is
    saving. A rank that is not heard of for `deadline_s` seconds makes a save fail. `vouch` is called
    with its tier before each save, on all ranks alike: it may raise `UnsoundStateError` for what is not to be kept.
    With `overlap` a copy goes on beside training, and `settle` is to be called before what it copies changes.
    """

    every_steps: int
    """Steps between saves; whoever changes it does so on all ranks after the same step."""

    def __init__(
        self,
        store: Store,
        messages: Messages,
        rank: int,
        world_size: int,
        attempt: int,
        recorder: Records,
        *,
        fingerprint: Mapping[str, str] | None = None,
        every_steps: int = 50,
        keep: int = 3,
        slot: SlotWriter | None = None,
        deadline_s: float = 600.0,
        saver: str = "",
        memory_every: int | None = None,
        memory: Recollection | None = None,
        vouch: Callable[[Tier], None] = lambda _: None,
        overlap: Overlap | None = None,
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._attempt = attempt
        self.every_steps = every_steps
        self._slot = slot
        self._vouching = Vouching(vouch)
        self._deadline_s = deadline_s
        self._channel = channel = Channel(messages, f"save-{attempt}/")
        self._waiting = False
        self._wanted: int | None = None
        self._last: tuple[int, Tree, Tree] | None = None
        self._spokesman = Spokesman(recorder, rank)
        found = fingerprint or {}
        folder = None if memory is None else memory.folder
        keeps = memory_every is not None and (bool(saver) or folder is not None)
        hello = Hello(store.run_id, attempt, rank, world_size, keep, deadline_s, found, keeps)
        buffers = for_memory(rank, memory) if keeps else Buffers()
        self._overlap = overlap
        by = copy if overlap is None else overlap.copy
        self._copier = Copier(rank, world_size, store.run_id, store.shard_bytes, found, buffers, by)
        self._copying: tuple[int, Tier] | None = None
        self._carrier = Carriers.of(hello, saver, store, channel, self._spokesman)
        others = (channel, self._carrier, self._spokesman)
        self._agreement = Agreement(
            rank, attempt, *others, deadline_s, partial(self._show, Mark.SAVING)
        )
        self._writer = Writer(self._carrier, self._first, self._agreement.forget)
        self._keeper = Keeper(self._copier, *others, folder, on=keeps)
        self.memory_every = memory_every or 0

    def prepare(self, shared: Tree, own: Tree, *, fresh: bool) -> None:
        """Settle how much memory copies get, on all ranks alike, before training starts.

        A `fresh` state has no state of its optimizers yet; it may become three times as large.
        """
        need = cache(lambda: self._copier.need(shared, own))  # to plan takes milliseconds
        # By all ranks at once, before the others wait for rank 0; what is wrong is told where it is used.
        if not fresh and (self.every_steps or self._keeper.is_on):
            with suppress(Exception):
                need()
        self._keeper.settle(need, 3 if fresh else 1, self._deadline_s)
        if not fresh and (self.every_steps or self._keeper.is_on):
            self._copier.reserve(need)

    def at_step(self, step: int, shared: Tree, own: Tree, force: bool = False) -> bool:
        """Save the state after `step` finished steps if that is due; called by all ranks alike.

        True if the state is on its way to the storage, or there. `shared` and `own` give the trees;
        they are called when a copy is taken, and once before to see how large it will be. With
        `force` (the last save of an attempt) this waits for the one in flight and then saves,
        unless that was of this very step.
        """
        taken = None
        if not force and self._keeper.is_on and due(step, self.memory_every):
            taken = self._kept(step, shared, own)
        if force or self._waiting or due(step, self.every_steps):
            return self._store_at(step, shared, own, force, taken)
        if self.every_steps or self._keeper.is_on:
            self._copier.reserve(lambda: self._copier.need(shared, own))
        return False

    def _store_at(
        self, step: int, shared: Tree, own: Tree, force: bool, taken: Taken | None
    ) -> bool:
        """Ask whether a save begins, and begin it; of what was `taken` for the memory, if anything was."""
        if force:
            self._wanted, self._last = step, (step, shared, own)
        try:
            reply = self._agreement.ask(self._writer, step, force)
            self._waiting = reply.answer is Answer.WAIT
            if reply.answer.begins:
                self._begin(reply, shared, own, taken)
        except UnsoundStateError:
            raise
        except Exception as error:  # noqa: BLE001  # such as a message store that has gone
            self._waiting = False
            warn(f"rank {self._rank} cannot save step {step}: {said(error)}")
            return False
        if not (reply.answer.begins or reply.answer is Answer.HAVE):
            return False
        self._wanted = step
        return True

    @property
    def keeps_memory(self) -> bool:
        """Copies are kept in memory: there is room for them, and somebody who holds them."""
        return self._keeper.is_on

    @property
    def commit_s(self) -> float:
        """How long the last save to storage took to become durable; 0 before the first."""
        return self._writer.commit_s

    def forget_copies(self) -> None:
        """Have no later attempt go on from what is in memory."""
        self._keeper.forget()

    def settle(self) -> None:
        """Wait, in the training thread, until what only an optimizer's step changes is copied."""
        if self._overlap is None or self._copying is None:
            return
        (step, tier), self._copying = self._copying, None
        if not self._overlap.holds_up:
            self._overlap.settle()
            return
        self._show(Mark.SAVING)
        self._spokesman.tell(SaveStarted(step, tier, rest=True))
        try:
            self._overlap.settle()
        finally:
            self._spokesman.tell(SaveUnblocked(step, tier))
            self._show(Mark.STEPPING)

    def finish(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight; True if the last state to be saved is durable.

        A last save whose saver died is made once more as soon as another is there.
        """
        until_s = time.monotonic() + timeout_s
        while self._landed(until_s):
            if not self._carrier.apart:
                return self._is_durable(self._writer.progress().durable_step)
            try:
                word = self._agreement.conclude(self._writer, self._wanted, until_s)
            except Exception as error:  # noqa: BLE001  # such as a message store that has gone
                warn(f"rank {self._rank} cannot tell how the last save ended: {said(error)}")
                return False
            if not word.again or self._last is None:
                return self._is_durable(word.durable_step)
            self.at_step(*self._last, force=True)
        return False

    def close(self, *, over: bool = False) -> None:
        """End the thread; what is in flight is waited for, but not for ever. A run that is `over` leaves no copies.

        Rank 0 leaves last: where its process hosts the messages, others still listen to them.
        """
        self._last = None
        self._writer.close(_CLOSE_S)
        self._keeper.close(_CLOSE_S, over=over)
        try:
            self._channel.append("closed", b"")
            if self._rank == 0:
                self._channel.hear(f"closed/{self._world_size}", within_s=_CLOSE_S)
                self._agreement.forget(self._agreement.questions)
                self._channel.forget_list("closed", self._world_size)
            self._carrier.close()
        except Exception:  # noqa: BLE001, S110  # the store may be gone before us, messages and all
            pass

    # ── how the last save ended ─────────────────────────────────────────────────────────────

    def _landed(self, until_s: float) -> bool:
        """Wait until nothing is in flight; False if something still is at `until_s`."""
        while not self._writer.wait(min(until_s - time.monotonic(), SIGN_OF_LIFE_S)):
            self._show(Mark.SAVING)
            if time.monotonic() >= until_s:
                return False
        return True

    def _is_durable(self, durable_step: int | None) -> bool:
        return self._wanted is not None and durable_step == self._wanted

    def _first(self) -> None:
        """What this rank's thread does before any save."""
        if self._carrier.apart:
            self._carrier.absent_s()  # says hello: from then on the saver knows whom to wait for
        elif self._rank == 0:
            sweep(self._store, self._attempt)

    # ── the copy ────────────────────────────────────────────────────────────────────────────

    def _begin(self, reply: Reply, shared: Tree, own: Tree, taken: Taken | None) -> None:
        """Copy this rank's share and hand it to the thread. Training stands still meanwhile."""
        place = Place(reply.step, self._attempt, reply.trial)
        number = self._agreement.questions - 1
        taken = taken or self._kept(place.step, shared, own)
        refusal = self._vouching.refusal(place.step, Tier.STORAGE)
        self._show(Mark.SAVING)
        self._spokesman.tell(SaveStarted(place.step, Tier.STORAGE))
        try:
            copied = self._copied(place, shared, own, taken) if refusal is None else (None, refusal)
        finally:
            self._spokesman.tell(SaveUnblocked(place.step, Tier.STORAGE))
            self._show(Mark.STEPPING)
        taken, failure = copied
        if not self._writer.wait(0):
            self._carrier.excuse(number, place, failure or "is still writing")
        elif taken is None:
            self._writer.submit(number, place, None, None, failure)
        else:
            self._writer.submit(
                number, place, taken.share, taken.memory, None, taken.slot, taken.wait
            )

    def _kept(self, step: int, shared: Tree, own: Tree) -> Taken | None:
        """A copy for the memory tier, if there is one."""
        if not self._keeper.is_on:
            return None
        refusal = self._vouching.refusal(step, Tier.MEMORY)
        if refusal is not None:
            warn(f"rank {self._rank} keeps no copy of step {step}: {refusal}")
            return None
        self._show(Mark.SAVING)
        try:
            self._copying = step, Tier.MEMORY
            return self._keeper.keep(Place(step, self._attempt), shared, own, self._writer.busy)
        finally:
            self._show(Mark.STEPPING)

    def _copied(
        self, place: Place, shared: Tree, own: Tree, taken: Taken | None
    ) -> tuple[Taken | None, str | None]:
        """The share and where its bytes are, or why there is none."""
        if not self._writer.wait(min(_HANDOVER_S, self._deadline_s / 4)):
            writing = self._writer.progress().writing_step
            return None, f"is still writing the state of step {writing}"
        if taken is not None:
            return taken, None
        try:
            self._copying = place.step, Tier.STORAGE
            self._keeper.wait()
            taken = self._copier.take(place, shared, own)
            assert taken is not None, "nothing is in flight, so no slot is busy"
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise  # the process is asked to end; that is no failure of the save
        except BaseException as error:  # noqa: BLE001  # some checkpoint errors are no `Exception`
            return None, said(error)
        return taken, None

    def _show(self, mark: Mark) -> None:
        if self._slot is not None:
            self._slot.update(mark=mark)
