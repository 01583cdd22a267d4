"""How an entry changes what is known of a run: a pure function, one entry at a time.

The table in `phases.py` says what may follow what; here is what each event means. Nothing that was
counted is ever taken back, so a counter may be read after any entry.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.events import (
    ArithmeticKnown,
    AttemptStarted,
    CheckpointDeleted,
    CheckpointRejected,
    DrainRequested,
    Entry,
    EvaluationFinished,
    EvaluationStarted,
    Event,
    FailureDetected,
    FaultConfirmed,
    FaultDeferred,
    FaultInjected,
    FaultLifted,
    FaultSkipped,
    HelperRestarted,
    IntervalChosen,
    RankJoined,
    RestoreStarted,
    RunFinished,
    RunStarted,
    SaveCommitted,
    SaveFailed,
    SaveStarted,
    SaveUnblocked,
    StateDigested,
    StepFinished,
    StepTimed,
    Tier,
    TrainingFinished,
    TrainingResumed,
    rank_of,
)
from harness.ledger import Rollback
from harness.lives import Lives
from harness.phases import NEXT_PHASE, OF_A_LIFE, PHASED, Phase
from harness.recovery import Stage
from harness.segments import Segment
from harness.tallies import Helper, Low, Rank, Reading

MOST_RANKS = 1_000_000
"""Who watches a run looks at each rank: what claims more is no run."""


class TimelineError(ValueError):
    """The log says something that cannot have happened."""


_LEAST_STEP: Mapping[type[Event], int] = {StepFinished: 1, TrainingResumed: 0}
"""The first step is 1, and a start from nothing is at 0."""


@dataclass(slots=True)
class Fold(Lives):
    """Folds a log. Entries come in the order of their instants; see `Account` for what it knows."""

    def feed(self, entry: Entry) -> Sequence[Segment]:
        """Take in the next entry; gives the stretches of time that it settled, in order.

        Raises `TimelineError`, and changes nothing, if the entry cannot follow what came before.
        """
        kind = type(entry.event)
        at_ns = entry.at_ns if entry.at_ns >= self.at_ns else self.at_ns
        if kind not in PHASED:
            settled = self.meter.elapse(at_ns)
            self._observe(entry, at_ns)
        elif entry.attempt <= self.dead_attempt and kind not in OF_A_LIFE:
            settled = []
            if kind is StepFinished:
                self._late_step(entry, at_ns)
        else:
            settled = self._admit(entry, kind, at_ns)
            settled += _MOVE[kind](self, entry, at_ns)
        self.late += entry.at_ns < at_ns
        self.at_ns = at_ns
        if settled:
            self.recent.settle(settled)
        return settled

    def _admit(self, entry: Entry, kind: type[Event], at_ns: int) -> list[Segment]:
        """Check the entry against the table; an attempt whose beginning nobody saw begins here."""
        event = entry.event
        least = _LEAST_STEP.get(kind)
        if least is not None and event.step < least:  # type: ignore[attr-defined]  # those have it
            raise TimelineError(
                f"{kind.__name__} of step {event.step}: it is {least} at least"  # type: ignore[attr-defined]
            )
        if (
            isinstance(event, RunStarted | AttemptStarted)
            and not 0 < event.world_size <= MOST_RANKS
        ):
            raise TimelineError(
                f"{kind.__name__} of {event.world_size} ranks: it is a number from 1 to {MOST_RANKS}"
            )
        unseen = entry.attempt > self.meter.attempt and kind not in OF_A_LIFE
        fails = unseen and self.meter.attempt > self.dead_attempt
        row = NEXT_PHASE[Phase.RESTART if fails else self.meter.phase]
        if kind not in row:
            raise TimelineError(
                f"{kind.__name__} of attempt {entry.attempt} cannot happen in phase"
                f" '{self.phase}' of attempt {self.attempt} (entry {entry.sequence} of"
                f" {entry.writer or 'the log'}); possible: {', '.join(sorted(k.__name__ for k in row))}"
            )
        return self._begin_attempt(entry.attempt, at_ns) if unseen else []

    # ── training ────────────────────────────────────────────────────────────────────────────

    def _restore_started(self, entry: Entry, at_ns: int) -> list[Segment]:
        self.restore_since_ns = at_ns
        self.recovery.reach(Stage.RESTORE, at_ns)
        return self._complete(entry, at_ns)

    def _training_resumed(self, entry: Entry, at_ns: int) -> list[Segment]:
        event = entry.event
        assert isinstance(event, TrainingResumed)
        settled = self._complete(entry, at_ns)
        self.holder, self.holder_ranks, self.resumed = entry.attempt, self.world_size, event
        self.total_steps = event.total_steps
        rollback = self._roll_back(event.step, at_ns)
        self.recovery.resume(event.step, event.tier, rollback.lost_ns, rollback.lost_steps)
        self.recovery.reach(Stage.WARMUP, at_ns)
        self.stragglers.resume(self.world_size, at_ns)
        self.speed.resume()
        self.checkpoints.restore(event, at_ns - self.restore_since_ns)
        return settled

    def _roll_back(self, step: int, at_ns: int) -> Rollback:
        rollback = self.ledger.resume(step, at_ns, self.meter.productive_ns)
        self.last_rollback = rollback
        self.rollbacks += 1
        self.lows.go_back(step)
        self.recent.lose(rollback.since_ns)
        return rollback

    def _step_finished(self, entry: Entry, at_ns: int) -> list[Segment]:
        event, meter = entry.event, self.meter
        assert isinstance(event, StepFinished)
        if event.step <= self.ledger.step:
            self._roll_back(event.step - 1, at_ns)
        before_ns = meter.totals[Phase.WORK]
        working = meter.phase is Phase.WORK  # by far the most frequent: straight through
        settled = meter.advance(at_ns) if working else self._complete(entry, at_ns)
        if (worked_ns := meter.totals[Phase.WORK] - before_ns) > 0:
            self.step_durations.add(worked_ns)
            self.speed.add(worked_ns, event.tokens)
        self._count(event, self.ledger.finish(event.step, at_ns, meter.productive_ns))
        self.last_step_at_ns = at_ns
        if self.idle:
            self.idle = False
            self.recovery.first_step(at_ns)
        if self.recovery.behind:
            self.recovery.progress(event.step, at_ns)
        return settled

    def _late_step(self, entry: Entry, at_ns: int) -> None:
        """A step of an attempt that is over: done all the same, in no time."""
        event = entry.event
        assert isinstance(event, StepFinished)
        if entry.attempt == self.holder and event.step == self.ledger.step + 1:
            useful = self.ledger.finish(event.step, at_ns, self.meter.productive_ns)
        else:
            useful = self.ledger.finish_lost(event.step)
        self._count(event, useful)

    def _count(self, event: StepFinished, useful: bool) -> None:
        if useful:
            self.tokens_useful += event.tokens
        else:
            self.tokens_redone += event.tokens
        if event.loss is not None:
            self.loss, self.loss_step = event.loss, event.loss_step
            step = event.step if event.loss_step is None else event.loss_step
            self.recent.losses.add(step, event.loss)

    def _evaluation_finished(self, entry: Entry, at_ns: int) -> list[Segment]:
        event = entry.event
        assert isinstance(event, EvaluationFinished)
        if event.loss is not None:
            self.validations.append(Reading(event.step, event.loss))
            del self.validations[: -self.keep]
            began_ns = at_ns if self.start_ns is None else self.start_ns
            self.lows.add(Low(event.step, event.loss, at_ns - began_ns))
        return self._pause(entry, at_ns)

    def _save_started(self, entry: Entry, at_ns: int) -> list[Segment]:
        event = entry.event
        assert isinstance(event, SaveStarted)
        self.checkpoints.start(event, entry.attempt, at_ns, self.meter.productive_ns)
        if event.tier is Tier.STORAGE:
            self.ledger.save(event.step, entry.attempt)
        return self._pause(entry, at_ns)

    def _save_unblocked(self, entry: Entry, at_ns: int) -> list[Segment]:
        event = entry.event
        assert isinstance(event, SaveUnblocked)
        self.checkpoints.unblock(event, entry.attempt, at_ns)
        return self._pause(entry, at_ns)

    def _training_finished(self, entry: Entry, at_ns: int) -> list[Segment]:
        self.idle = False
        settled = self._complete(entry, at_ns)
        self.ledger.complete(at_ns, self.meter.productive_ns)
        return settled

    # ── what moves no phase ─────────────────────────────────────────────────────────────────

    def _observe(self, entry: Entry, at_ns: int) -> None:
        match entry.event:
            case StepTimed() | StateDigested() | RankJoined():
                self._observe_rank(entry, at_ns)
            case SaveCommitted() | SaveFailed() | CheckpointDeleted() | CheckpointRejected():
                self._observe_save(entry, at_ns)
            case ArithmeticKnown() as event:
                self.speed.arithmetic = event
            case IntervalChosen() as event:
                self.intervals[event.tier] = event
            case HelperRestarted(name, reason):
                self.helpers.setdefault(name, Helper()).restart(reason)
            case (
                FaultDeferred()
                | FaultInjected()
                | FaultConfirmed()
                | FaultLifted()
                | FaultSkipped()
            ) as event:
                self.faults.observe(event, self.attempt, at_ns, self.keep)
            case event:
                self.recovery.observe(event, at_ns)
                self.findings.observe(entry, self.keep)

    def _observe_save(self, entry: Entry, at_ns: int) -> None:
        match entry.event:
            case SaveCommitted() as event:
                self.checkpoints.commit(event, entry.attempt, at_ns)
            case SaveFailed() as event:
                self.checkpoints.fail(event, entry.attempt, at_ns)
                self.ledger.forget(event.step, entry.attempt)
            case CheckpointDeleted() as event:
                self.checkpoints.deleted += 1
                self.ledger.forget(event.step, event.saved_by)
            case CheckpointRejected() as event:
                self.checkpoints.reject(event, entry.attempt, self.keep)
            case _:
                pass

    def _observe_rank(self, entry: Entry, at_ns: int) -> None:
        number = rank_of(entry.writer)
        if number is None:
            return
        rank = self.ranks.setdefault(number, Rank())
        match entry.event:
            case StepTimed() as event:
                rank.timed_step = event.step
                rank.own_ns, rank.wait_ns = event.own_ns, event.wait_ns
                if entry.attempt == self.holder:
                    self.stragglers.time(number, event, at_ns, self.keep)
            case StateDigested() as event:
                rank.digested_step, rank.digests = event.step, event.components
            case RankJoined() as event:
                rank.pid, rank.start_ticks = event.pid, event.start_ticks
                rank.attempt, rank.joined_at_ns = entry.attempt, at_ns
                rank.local_rank, rank.node = event.local_rank, event.node
                rank.gpu_uuid = event.gpu_uuid
            case _:
                pass


_MOVE: Mapping[type[Event], Callable[[Fold, Entry, int], list[Segment]]] = {
    RunStarted: Lives._run_started,
    AttemptStarted: Lives._attempt_started,
    FailureDetected: Lives._failure_detected,
    DrainRequested: Lives._drain_requested,
    RunFinished: Lives._run_finished,
    RestoreStarted: Fold._restore_started,
    TrainingResumed: Fold._training_resumed,
    StepFinished: Fold._step_finished,
    EvaluationStarted: Lives._pause,
    EvaluationFinished: Fold._evaluation_finished,
    SaveStarted: Fold._save_started,
    SaveUnblocked: Fold._save_unblocked,
    TrainingFinished: Fold._training_finished,
}
