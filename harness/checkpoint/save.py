"""Saves the state while training goes on: what a rank's training thread sees of it.

Training stops for the copy and nothing else; what is copied, a carrier makes durable. When a save is
due, rank 0 says for all whether it begins now; if one is still in flight, all ask again at each
boundary, so that the newest state is the one that is saved. No failure of a save ever reaches training.
"""

import time
from collections.abc import Callable, Mapping

import msgspec

from harness.checkpoint.alone import Alone
from harness.checkpoint.capture import Copier, Tree
from harness.checkpoint.carriers import Carriers
from harness.checkpoint.handover import Handover
from harness.checkpoint.manifest import Place
from harness.checkpoint.memory import Memory
from harness.checkpoint.messages import Channel, Messages
from harness.checkpoint.policy import LAST_ABSENT_S, Answer, Decision, decide, due
from harness.checkpoint.share import Share
from harness.checkpoint.store import Store
from harness.checkpoint.tell import Records, Spokesman, said, warn
from harness.checkpoint.upkeep import sweep
from harness.checkpoint.wire import Hello
from harness.checkpoint.words import Conclusion, Reply
from harness.checkpoint.writer import Writer
from harness.events import SaveStarted, SaveUnblocked, Tier
from harness.signals.unsound import UnsoundStateError
from harness.slots import Mark, SlotWriter

_SIGN_OF_LIFE_S = 0.5
_CLOSE_S = 5.0
_LOOK_S = 0.05
_HANDOVER_S = 1.0
"""How long this rank's thread may take to hear that a save has ended which rank 0 knows to have."""


class Checkpointer:
    """Saves by policy. Each rank has one and calls it at every step boundary.

    The saver at `saver` writes; where that is empty or gone for good, a thread of this process does.
    The recorder is used on rank 0 alone; `slot`, where given, shows the launcher that this rank is
    saving. A rank that is not heard of for `deadline_s` seconds makes a save fail. `vouch` is called
    before each copy, on all ranks alike: it may raise `UnsoundStateError` for what is not to be kept.
    """

    def __init__(
        self,
        store: Store,
        messages: Messages,
        rank: int,
        world_size: int,
        attempt: int,
        recorder: Records,
        fingerprint: Mapping[str, str] | None = None,
        every_steps: int = 50,
        keep: int = 3,
        slot: SlotWriter | None = None,
        deadline_s: float = 600.0,
        saver: str = "",
        *,
        vouch: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._attempt = attempt
        self.every_steps = every_steps
        """Steps between saves; whoever changes it does so on all ranks after the same step."""
        self._slot = slot
        self._vouch = vouch
        self._deadline_s = deadline_s
        self._channel = Channel(messages, f"save-{attempt}/")
        self._copier = Copier(rank, world_size, store.run_id, store.shard_bytes)
        self._waiting = False
        self._questions = 0
        self._trials: dict[int, int] = {}
        self._wanted: int | None = None
        self._clean_to = 0
        self._conclusions: list[int] = []
        self._last: tuple[int, Tree, Tree] | None = None
        self._spokesman = Spokesman(recorder, rank)
        found = fingerprint or {}
        place = (rank, world_size)
        hello = Hello(store.run_id, attempt, *place, keep, deadline_s, found)
        self._carrier = Carriers(
            Handover(saver, hello, store, self._spokesman) if saver else None,
            Alone(store, self._channel, *place, self._spokesman, found, keep, deadline_s),
            store,
            rank,
        )
        self._writer = Writer(self._carrier, self._first, self._forget_answers)

    def at_step(self, step: int, shared: Tree, own: Tree, force: bool = False) -> bool:
        """Save the state after `step` finished steps if that is due; called by all ranks alike.

        True if the state is on its way to the storage, or there. `shared` and `own` give the trees;
        they are called when a copy is taken, and once before to see how large it will be. With
        `force` (the last save of an attempt) this waits for the one in flight and then saves,
        unless that was of this very step.
        """
        if not (force or self._waiting or due(step, self.every_steps)):
            if self.every_steps:
                self._copier.reserve(shared, own)
            return False
        if force:
            self._wanted, self._last = step, (step, shared, own)
        try:
            reply = self._ask(step, force)
            self._waiting = reply.answer is Answer.WAIT
            if reply.answer.begins:
                self._vouch()
                self._begin(reply, shared, own)
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

    def finish(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight; True if the last state to be saved is durable.

        A last save whose saver died is made once more as soon as another is there.
        """
        until_s = time.monotonic() + timeout_s
        while self._landed(until_s):
            if not self._carrier.apart:
                return self._is_durable(self._writer.progress().durable_step)
            try:
                word = self._conclusion(until_s)
            except Exception as error:  # noqa: BLE001  # such as a message store that has gone
                warn(f"rank {self._rank} cannot tell how the last save ended: {said(error)}")
                return False
            if not word.again or self._last is None:
                return self._is_durable(word.durable_step)
            self.at_step(*self._last, force=True)
        return False

    def close(self) -> None:
        """End the thread; what is in flight is waited for, but not for ever.

        Rank 0 leaves last: where its process hosts the messages, others still listen to them.
        """
        self._last = None
        self._writer.close(_CLOSE_S)
        try:
            self._channel.append("closed", b"")
            if self._rank == 0:
                self._channel.hear(f"closed/{self._world_size}", within_s=_CLOSE_S)
                self._forget_answers(self._questions)
                self._channel.forget_list("closed", self._world_size)
            self._carrier.close()
        except Exception:  # noqa: BLE001, S110  # the store may be gone before us, messages and all
            pass

    # ── how the last save ended ─────────────────────────────────────────────────────────────

    def _landed(self, until_s: float) -> bool:
        """Wait until nothing is in flight; False if something still is at `until_s`."""
        while not self._writer.wait(min(until_s - time.monotonic(), _SIGN_OF_LIFE_S)):
            self._show(Mark.SAVING)
            if time.monotonic() >= until_s:
                return False
        return True

    def _is_durable(self, durable_step: int | None) -> bool:
        return self._wanted is not None and durable_step == self._wanted

    def _conclusion(self, until_s: float) -> Conclusion:
        """Rank 0's word on the last save, on every rank: a saver may die between two of its answers."""
        key = f"conclusion/{self._questions}"
        if self._rank != 0:
            within_s = max(0.0, until_s - time.monotonic())
            _, message = self._channel.hear(key, within_s=within_s, meanwhile=self._alive(True))
            return msgspec.json.decode(message, type=Conclusion)
        progress = self._writer.progress()
        again = not self._is_durable(progress.durable_step) and self._writer.lost
        while again and 0 < self._carrier.absent_s() < LAST_ABSENT_S:
            self._show(Mark.SAVING)
            time.sleep(_LOOK_S)
            again = time.monotonic() < until_s
        word = Conclusion(progress.durable_step, again and self._last is not None)
        self._conclusions.append(self._questions)
        self._channel.post(key, msgspec.json.encode(word))
        return word

    # ── what to do at this boundary ─────────────────────────────────────────────────────────

    def _ask(self, step: int, force: bool) -> Reply:
        if self._rank == 0:
            return self._decide(step, force)
        while True:
            within_s = 4 * self._deadline_s  # rank 0 itself stops waiting after two
            key = f"answer/{self._questions}"
            _, message = self._channel.hear(key, within_s=within_s, meanwhile=self._alive(force))
            number, self._questions = self._questions, self._questions + 1
            reply = msgspec.json.decode(message, type=Reply)
            if reply.answer is Answer.ALONE:
                self._carrier.turn()
            if reply.step == step:
                return reply
            if reply.answer.begins:  # said after this rank had stopped listening
                place = self._place(reply)
                self._carrier.excuse(
                    number, place, f"was not there for the copy of step {reply.step}"
                )

    def _decide(self, step: int, force: bool) -> Reply:
        decision = self._decision(step, force)
        trial = 1
        if decision.answer is Answer.GIVE_UP:
            self._writer.give_up(decision.reason)
            self._spokesman.fail(step, decision.reason)
        elif decision.answer.begins:
            trial = self._trials.get(step, 0) + 1
            self._trials = {step: trial}
        reply = Reply(step, decision.answer, trial)
        self._channel.post(f"answer/{self._questions}", msgspec.json.encode(reply))
        self._questions += 1
        if decision.answer is Answer.ALONE:
            warn(decision.reason)
            self._carrier.turn()
        return reply

    def _decision(self, step: int, force: bool) -> Decision:
        while True:
            progress = self._writer.progress()
            decision = decide(step, progress, force=force, stuck_s=2 * self._deadline_s)
            if not force or decision.answer is not Answer.WAIT:
                return decision
            self._show(Mark.SAVING)
            if progress.writing_step is None:
                time.sleep(_LOOK_S)  # until a saver is there
            else:
                self._writer.wait(_SIGN_OF_LIFE_S)

    def _first(self) -> None:
        """What this rank's thread does before any save."""
        if self._carrier.apart:
            self._carrier.absent_s()  # says hello: from then on the saver knows whom to wait for
        elif self._rank == 0:
            sweep(self._store, self._attempt)

    def _forget_answers(self, end: int) -> None:
        """Delete what was said of all questions before number `end`, which every rank has read."""
        if self._rank == 0:
            self._channel.forget(f"answer/{number}" for number in range(self._clean_to, end))
            self._clean_to = end
            heard = [number for number in self._conclusions if number <= end]
            self._channel.forget(f"conclusion/{number}" for number in heard)
            self._conclusions = self._conclusions[len(heard) :]

    # ── the copy ────────────────────────────────────────────────────────────────────────────

    def _begin(self, reply: Reply, shared: Tree, own: Tree) -> None:
        """Copy this rank's share and hand it to the thread. Training stands still meanwhile."""
        place = self._place(reply)
        number = self._questions - 1
        self._show(Mark.SAVING)
        self._spokesman.tell(SaveStarted(place.step, Tier.STORAGE))
        try:
            share, memory, failure = self._copied(place, shared, own)
        finally:
            self._spokesman.tell(SaveUnblocked(place.step, Tier.STORAGE))
            self._show(Mark.STEPPING)
        if self._writer.wait(0):
            self._writer.submit(number, place, share, memory, failure)
        else:
            self._carrier.excuse(number, place, failure or "is still writing")

    def _place(self, reply: Reply) -> Place:
        return Place(reply.step, self._attempt, reply.trial)

    def _copied(
        self, place: Place, shared: Tree, own: Tree
    ) -> tuple[Share | None, Memory | None, str | None]:
        """The share and where its bytes are, or why there is none."""
        if not self._writer.wait(min(_HANDOVER_S, self._deadline_s / 4)):
            writing = self._writer.progress().writing_step
            return None, None, f"is still writing the state of step {writing}"
        try:
            share, memory = self._copier.take(place, shared, own)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise  # the process is asked to end; that is no failure of the save
        except BaseException as error:  # noqa: BLE001  # some checkpoint errors are no `Exception`
            return None, None, said(error)
        return share, memory, None

    def _show(self, mark: Mark) -> None:
        if self._slot is not None:
            self._slot.update(mark=mark)

    def _alive(self, force: bool) -> Callable[[], None] | None:
        """What shows, while this rank waits for its last save, that it is not stuck."""
        return (lambda: self._show(Mark.SAVING)) if force else None
