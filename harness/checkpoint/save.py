"""Saves the state while training goes on: what a rank's training thread sees of it.

Training stops for the copy and nothing else. When a save is due, rank 0 says for all whether it
begins now; if one is still in flight, all ask again at each boundary, so that the newest state is
the one that is saved. No failure of a save ever reaches training.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from harness.checkpoint.buffers import Buffers
from harness.checkpoint.capture import Plan, plan, take
from harness.checkpoint.commit import pack
from harness.checkpoint.manifest import Place
from harness.checkpoint.messages import Channel, Messages
from harness.checkpoint.policy import Answer, Decision, decide, due
from harness.checkpoint.share import Report, Share
from harness.checkpoint.store import Store
from harness.checkpoint.tell import Records, said, warn
from harness.checkpoint.writer import Writer
from harness.events import SaveStarted, SaveUnblocked, Tier
from harness.points import Point, reach
from harness.slots import Mark, SlotWriter

_SIGN_OF_LIFE_S = 0.5
_CLOSE_S = 5.0
_HANDOVER_S = 1.0
"""How long this rank's thread may take to hear that a save has ended which rank 0 knows to have."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What rank 0 told all ranks at a boundary."""

    step: int
    answer: Answer
    trial: int = 1
    """Counts the saves of one step in one attempt; another follows only a failed one."""


class Saver:
    """Saves by policy. Each rank has one and calls it at every step boundary.

    The recorder is used on rank 0 alone; `slot`, where given, shows the launcher that this rank is
    saving. A rank that is not heard of for `deadline_s` seconds makes a save fail.
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
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._attempt = attempt
        self._every_steps = every_steps
        self._slot = slot
        self._deadline_s = deadline_s
        self._channel = Channel(messages, f"save-{attempt}/")
        self._buffers = Buffers()
        self._reserved = False
        self._waiting = False
        self._questions = 0
        self._trials: dict[int, int] = {}
        self._wanted: int | None = None
        self._writer = Writer(
            store,
            self._channel,
            rank,
            world_size,
            attempt,
            recorder,
            fingerprint or {},
            keep,
            deadline_s,
        )

    def at_step(
        self,
        step: int,
        shared: Callable[[], Any],
        own: Callable[[], Any],
        force: bool = False,
    ) -> bool:
        """Save the state after `step` finished steps if that is due; called by all ranks alike.

        True if the state is on its way to the storage, or there. `shared` and `own` give the trees;
        they are called when a copy is taken, and once before to see how large it will be. With
        `force` (the last save of an attempt) this waits for the one in flight and then saves,
        unless that was of this very step.
        """
        if not (force or self._waiting or due(step, self._every_steps)):
            self._reserve(shared, own)
            return False
        if force:
            self._wanted = step
        try:
            reply = self._ask(step, force)
            self._waiting = reply.answer is Answer.WAIT
            if reply.answer is Answer.GO:
                self._begin(reply, shared, own)
        except Exception as error:  # noqa: BLE001  # such as a message store that has gone
            self._waiting = False
            warn(f"rank {self._rank} cannot save step {step}: {said(error)}")
            return False
        if reply.answer not in (Answer.GO, Answer.HAVE):
            return False
        self._wanted = step
        return True

    def finish(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight; True if the last state to be saved is durable."""
        left_s = timeout_s
        while not self._writer.wait(min(left_s, _SIGN_OF_LIFE_S)):
            self._show(Mark.SAVING)
            left_s -= _SIGN_OF_LIFE_S
            if left_s <= 0:
                return False
        return self._wanted is not None and self._writer.progress().durable_step == self._wanted

    def close(self) -> None:
        """End the thread; what is in flight is waited for, but not for ever.

        Rank 0 leaves last: where its process hosts the messages, others still listen to them.
        """
        self._writer.close(_CLOSE_S)
        try:
            self._channel.append("closed", b"")
            if self._rank == 0:
                self._channel.hear(f"closed/{self._world_size}", within_s=_CLOSE_S)
                self._writer.forget(self._questions)
                self._channel.forget_list("closed", self._world_size)
        except Exception:  # noqa: BLE001, S110  # the store may be gone before us, messages and all
            pass

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
            if reply.step == step:
                return reply
            if reply.answer is Answer.GO:  # said after this rank had stopped listening
                self._report_failure(number, f"was not there for the copy of step {reply.step}")

    def _decide(self, step: int, force: bool) -> Reply:
        decision = self._decision(step, force)
        trial = 1
        if decision.answer is Answer.GIVE_UP:
            self._writer.give_up(decision.reason)
            self._writer.fail(step, decision.reason)
        elif decision.answer is Answer.GO:
            trial = self._trials[step] = self._trials.get(step, 0) + 1
        reply = Reply(step, decision.answer, trial)
        self._channel.post(f"answer/{self._questions}", msgspec.json.encode(reply))
        self._questions += 1
        return reply

    def _decision(self, step: int, force: bool) -> Decision:
        while True:
            progress = self._writer.progress()
            decision = decide(step, progress, force=force, stuck_s=2 * self._deadline_s)
            if not force or decision.answer is not Answer.WAIT:
                return decision
            self._show(Mark.SAVING)
            self._writer.wait(_SIGN_OF_LIFE_S)

    # ── the copy ────────────────────────────────────────────────────────────────────────────

    def _begin(self, reply: Reply, shared: Callable[[], Any], own: Callable[[], Any]) -> None:
        """Copy this rank's share and hand it to the thread. Training stands still meanwhile."""
        place = Place(reply.step, self._attempt, reply.trial)
        number = self._questions - 1
        self._show(Mark.SAVING)
        self._writer.tell(SaveStarted(place.step, Tier.STORAGE))
        try:
            share, failure = self._copied(place, shared, own)
        finally:
            self._writer.tell(SaveUnblocked(place.step, Tier.STORAGE))
            self._show(Mark.STEPPING)
        if self._writer.wait(0):
            self._writer.submit(number, place, share, failure)
        else:
            self._report_failure(number, failure or "is still writing")

    def _reserve(self, shared: Callable[[], Any], own: Callable[[], Any]) -> None:
        """Get the memory for the first copy before that is due; once."""
        if self._reserved or self._every_steps == 0:
            return
        self._reserved = True
        try:
            planned = self._plan(shared, own)
            self._buffers.reserve(planned.parts, planned.tensors)
        except Exception as error:  # noqa: BLE001  # the save itself will fail, and be told
            warn(f"rank {self._rank} has a state that it will not be able to save: {said(error)}")

    def _plan(self, shared: Callable[[], Any], own: Callable[[], Any]) -> Plan:
        return plan(shared(), own(), self._rank, self._world_size, self._store.shard_bytes)

    def _copied(
        self, place: Place, shared: Callable[[], Any], own: Callable[[], Any]
    ) -> tuple[Share | None, str | None]:
        """The share, or why there is none."""
        if not self._writer.wait(min(_HANDOVER_S, self._deadline_s / 4)):
            writing = self._writer.progress().writing_step
            return None, f"is still writing the state of step {writing}"
        try:
            reach(Point.SAVE_COPY)
            planned = self._plan(shared, own)
            share = take(planned, place, self._store.run_id, self._buffers)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise  # the process is asked to end; that is no failure of the save
        except BaseException as error:  # noqa: BLE001  # some checkpoint errors are no `Exception`
            return None, said(error)
        return share, None

    def _report_failure(self, number: int, failure: str) -> None:
        """Report without the thread, which is busy or knows nothing of this save."""
        self._channel.append(f"{number}/reports", pack(Report(self._rank, failure)))

    def _show(self, mark: Mark) -> None:
        if self._slot is not None:
            self._slot.update(mark=mark)

    def _alive(self, force: bool) -> Callable[[], None] | None:
        """What shows, while this rank waits for its last save, that it is not stuck."""
        return (lambda: self._show(Mark.SAVING)) if force else None
