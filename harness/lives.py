"""Lives of a launcher and attempts within them: how they begin, fail, drain and end.

An attempt is over when it is declared failed, when the next one begins, or when its launcher is
gone; from then on nothing that its ranks still write moves a phase.
"""

from dataclasses import dataclass

from harness.account import Account
from harness.events import (
    AttemptStarted,
    Cause,
    Entry,
    FailureDetected,
    Outcome,
    RunFinished,
    RunStarted,
)
from harness.phases import NEXT_PHASE, Phase
from harness.recovery import Restart, Stage
from harness.segments import Segment


@dataclass(slots=True)
class Lives(Account):
    """The part of the fold that follows the launcher."""

    def _follow(self, entry: Entry, at_ns: int) -> None:
        """Go where the table leads."""
        phase = self.meter.phase
        following = NEXT_PHASE[phase][type(entry.event)]
        if following is Phase.SAVE_STALL or following is Phase.EVALUATION:
            self.base = phase
        self.meter.close(at_ns, self.base if following is None else following)

    def _pause(self, entry: Entry, at_ns: int) -> list[Segment]:
        """A save or an evaluation begins or ends: work before it goes on waiting for its step."""
        self._follow(entry, at_ns)
        return self.meter.settle_certain()

    def _complete(self, entry: Entry, at_ns: int) -> list[Segment]:
        """What waited was what it seemed to be."""
        self._follow(entry, at_ns)
        return self.meter.settle()

    # ── lives and attempts ──────────────────────────────────────────────────────────────────

    def _run_started(self, entry: Entry, at_ns: int) -> list[Segment]:
        event, meter = entry.event, self.meter
        assert isinstance(event, RunStarted)
        settled: list[Segment] = []
        if self.start_ns is None:
            self.start_ns = meter.since_ns = at_ns
        elif meter.phase is Phase.FINISHED:
            meter.phase = Phase.DOWN
        else:
            settled = self._interrupt(self.at_ns, Phase.DOWN)
        meter.close(at_ns, Phase.STARTUP)
        settled += meter.settle()
        self.interventions += self.lives > 0 and self.outcome is not Outcome.FINISHED
        self.lives += 1
        self.run_id, self.tool = event.run_id, event.tool
        meter.resize(event.world_size)
        self._end_life(None, "")
        return settled

    def _run_finished(self, entry: Entry, at_ns: int) -> list[Segment]:
        event = entry.event
        assert isinstance(event, RunFinished)
        if event.outcome in (Outcome.FINISHED, Outcome.DRAINED):
            settled = self._complete(entry, at_ns)
        else:
            settled = self._interrupt(at_ns, Phase.FINISHED)
        self._end_life(event.outcome, event.reason)
        return settled

    def _end_life(self, outcome: Outcome | None, reason: str) -> None:
        """Nothing of what the former launcher began goes on."""
        self.outcome, self.outcome_reason = outcome, reason
        self.dead_attempt, self.last_step_at_ns = self.attempt, None
        self.checkpoints.end_attempt()
        self.recovery.abandon()

    def _attempt_started(self, entry: Entry, at_ns: int) -> list[Segment]:
        event = entry.event
        assert isinstance(event, AttemptStarted)
        settled: list[Segment] = []
        if self.phase is Phase.FINISHED:
            self.meter.phase, self.outcome, self.outcome_reason = Phase.RESTART, None, ""
        if entry.attempt != self.attempt or self.attempt <= self.dead_attempt:
            settled = self._begin_attempt(entry.attempt, at_ns)
        settled += self._complete(entry, at_ns)
        self.meter.resize(event.world_size)
        return settled

    def _begin_attempt(self, attempt: int, at_ns: int) -> list[Segment]:
        """Attempt `attempt` begins; one that was still thought alive has failed."""
        settled: list[Segment] = []
        if self.attempt > self.dead_attempt:
            settled = self._fail(None, None, "found out when the next attempt began", at_ns)
        settled += self.meter.elapse(at_ns)
        self.meter.attempt, self.idle = attempt, True
        self.dead_attempt = min(self.dead_attempt, attempt - 1)
        self.attempts += 1
        self.recovery.begin_attempt(attempt)
        self.recovery.reach(Stage.SPAWN, at_ns)
        return settled

    def _failure_detected(self, entry: Entry, at_ns: int) -> list[Segment]:
        event = entry.event
        assert isinstance(event, FailureDetected)
        return self._fail(event.rank, event.cause, event.reason, at_ns)

    def _fail(
        self, rank: int | None, cause: Cause | None, reason: str, at_ns: int
    ) -> list[Segment]:
        settled = self._interrupt(at_ns, Phase.RESTART)
        self.dead_attempt = self.attempt
        self.checkpoints.end_attempt()
        restart = Restart(
            attempt=self.attempt,
            cause=cause,
            reason=reason,
            rank=rank,
            failed_at_ns=at_ns,
            last_step_at_ns=self.last_step_at_ns,
            last_step=self.ledger.step,
            burnt=self.idle and not self.faults.hit(self.attempt),
            faults=self.faults.detect(self.attempt, at_ns),
        )
        self.recovery.fail(restart, self.idle, self.keep)
        return settled

    def _interrupt(self, at_ns: int, following: Phase) -> list[Segment]:
        self.checkpoints.cut_short += self.phase is Phase.SAVE_STALL
        return self.meter.interrupt(at_ns, following)

    def _drain_requested(self, entry: Entry, at_ns: int) -> list[Segment]:
        """A stall under way goes on as one; after it, and at once elsewhere, it is drain."""
        if self.phase is Phase.FINISHED:
            return []
        if self.phase is Phase.SAVE_STALL:
            settled = self.meter.settle()
            self.base = Phase.DRAIN
            return settled
        return self._complete(entry, at_ns)
