"""What rank 0 decides about saves, said to all ranks: at each boundary that asks, and of the last save.

Questions are counted alike on all ranks, so a number names one answer, and one save.
"""

import time
from collections.abc import Callable

import msgspec

from harness.checkpoint.carriers import Carriers
from harness.checkpoint.manifest import Place
from harness.checkpoint.messages import Channel
from harness.checkpoint.policy import LAST_ABSENT_S, Answer, Decision, decide
from harness.checkpoint.tell import Spokesman, warn
from harness.checkpoint.words import Conclusion, Reply
from harness.checkpoint.writer import Writer

SIGN_OF_LIFE_S = 0.5
_LOOK_S = 0.05


class Agreement:
    """One rank's part in it. `busy` is called to show that this rank is saving, and not stuck."""

    def __init__(
        self,
        rank: int,
        attempt: int,
        channel: Channel,
        carrier: Carriers,
        spokesman: Spokesman,
        deadline_s: float,
        busy: Callable[[], None],
    ) -> None:
        self._rank = rank
        self._attempt = attempt
        self._channel = channel
        self._carrier = carrier
        self._spokesman = spokesman
        self._deadline_s = deadline_s
        self._busy = busy
        self.questions = 0
        """How many were answered."""
        self._trials: dict[int, int] = {}
        self._clean_to = 0
        self._conclusions: list[int] = []

    def ask(self, writer: Writer, step: int, force: bool) -> Reply:
        """Whether a save begins after `step` finished steps."""
        if self._rank == 0:
            return self._decide(writer, step, force)
        meanwhile = self._busy if force else None
        while True:
            within_s = 4 * self._deadline_s  # rank 0 itself stops waiting after two
            key = f"answer/{self.questions}"
            _, message = self._channel.hear(key, within_s=within_s, meanwhile=meanwhile)
            number, self.questions = self.questions, self.questions + 1
            reply = msgspec.json.decode(message, type=Reply)
            if reply.answer is Answer.ALONE:
                self._carrier.turn()
            if reply.step == step:
                return reply
            if reply.answer.begins:  # said after this rank had stopped listening
                place = Place(reply.step, self._attempt, reply.trial)
                self._carrier.excuse(
                    number, place, f"was not there for the copy of step {reply.step}"
                )

    def _decide(self, writer: Writer, step: int, force: bool) -> Reply:
        decision = self._decision(writer, step, force)
        trial = 1
        if decision.answer is Answer.GIVE_UP:
            writer.give_up(decision.reason)
            self._spokesman.fail(step, decision.reason)
        elif decision.answer.begins:
            trial = self._trials.get(step, 0) + 1
            self._trials = {step: trial}
        reply = Reply(step, decision.answer, trial)
        self._channel.post(f"answer/{self.questions}", msgspec.json.encode(reply))
        self.questions += 1
        if decision.answer is Answer.ALONE:
            warn(decision.reason)
            self._carrier.turn()
        return reply

    def _decision(self, writer: Writer, step: int, force: bool) -> Decision:
        while True:
            progress = writer.progress()
            decision = decide(step, progress, force=force, stuck_s=2 * self._deadline_s)
            if not force or decision.answer is not Answer.WAIT:
                return decision
            self._busy()
            if progress.writing_step is None:
                time.sleep(_LOOK_S)  # until a saver is there
            else:
                writer.wait(SIGN_OF_LIFE_S)

    def conclude(self, writer: Writer, wanted: int | None, until_s: float) -> Conclusion:
        """Rank 0's word on the save of step `wanted`, on every rank.

        A saver may die between two of its answers.
        """
        key = f"conclusion/{self.questions}"
        if self._rank != 0:
            within_s = max(0.0, until_s - time.monotonic())
            _, message = self._channel.hear(key, within_s=within_s, meanwhile=self._busy)
            return msgspec.json.decode(message, type=Conclusion)
        progress = writer.progress()
        again = progress.durable_step != wanted and writer.lost
        while again and 0 < self._carrier.absent_s() < LAST_ABSENT_S:
            self._busy()
            time.sleep(_LOOK_S)
            again = time.monotonic() < until_s
        word = Conclusion(progress.durable_step, again)
        self._conclusions.append(self.questions)
        self._channel.post(key, msgspec.json.encode(word))
        return word

    def forget(self, end: int) -> None:
        """Delete what was said of all questions before number `end`, which every rank has read."""
        if self._rank == 0:
            self._channel.forget(f"answer/{number}" for number in range(self._clean_to, end))
            self._clean_to = end
            heard = [number for number in self._conclusions if number <= end]
            self._channel.forget(f"conclusion/{number}" for number in heard)
            self._conclusions = self._conclusions[len(heard) :]
