import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from harness.events import (
    AttemptStarted,
    Cause,
    CheckpointDeleted,
    CheckpointRejected,
    DrainRequested,
    Entry,
    EvaluationFinished,
    EvaluationStarted,
    Event,
    FailureDetected,
    FaultConfirmed,
    FaultInjected,
    FaultSkipped,
    GroupFormed,
    Outcome,
    RankJoined,
    RanksSpawned,
    RanksStopped,
    Rejection,
    RestoreStarted,
    RunFinished,
    RunStarted,
    SaveCommitted,
    SaveFailed,
    SaveStarted,
    SaveUnblocked,
    StacksDumped,
    StateDigested,
    StateFound,
    StepFinished,
    StepTimed,
    Tier,
    TrainingFinished,
    TrainingResumed,
    event_types,
)
from harness.fold import Fold
from harness.journal import read
from harness.ledger import Ledger
from harness.phases import NEXT_PHASE, PRODUCTIVE, Phase, diagram
from harness.recovery import Restart, Stage
from harness.rundir import RunDir
from harness.saves import RejectedCheckpoint, Saves
from harness.segments import Segment
from harness.sightings import Fault, FaultState, Scope
from harness.tallies import Rank, Reading
from harness.timeline import Timeline, TimelineError, timeline
from tests.harness.runs import S, log, prefixes, start, step, walks

KILLED = FailureDetected(1, Cause.SIGNAL, "rank 1: SIGKILL")


def stretches(folded: Timeline) -> list[tuple[Any, ...]]:
    """(phase, from second, to second, and what is special about it)"""
    return [
        (s.phase.value, s.start_ns / S, s.end_ns / S, *(["lost"] if s.lost else []),
         *(["cut short"] if s.cut_short else []))
        for s in folded.segments
    ]  # fmt: skip


def numbers(entries: Any) -> list[tuple[int, int]]:
    """(attempt, step)"""
    return [(entry.attempt, entry.event.step) for entry in entries]


# ── worked by hand ──────────────────────────────────────────────────────────────────────────────


def test_a_save_that_becomes_durable_after_its_attempt_has_failed_is_what_the_next_resumes_from():
    folded = timeline(
        log(
            *start(),
            (10, 1, step(2)),
            (10, 1, SaveStarted(2, Tier.STORAGE)),
            (10.5, 1, SaveUnblocked(2, Tier.STORAGE)),
            (11, 1, KILLED),
            (11.5, 1, RanksStopped()),
            (12, 2, AttemptStarted(2)),
            (12.5, 1, SaveCommitted(2, Tier.STORAGE, 600)),  # by the saver, which lives on
            (12.75, 1, CheckpointDeleted(1, 1)),
            (13, 2, RestoreStarted()),
            (14, 2, TrainingResumed(2, Tier.STORAGE, 1)),
            (16, 2, step(3)),
            (17, 1, SaveFailed(3, Tier.STORAGE, "attempt 2 has taken over from attempt 1")),
            (18, 2, step(4)),
        )
    )
    assert stretches(folded)[-3:] == [("restore", 13, 14), ("warmup", 14, 16), ("work", 16, 18)]
    account = folded.account
    assert (account.attempt, account.step, account.ledger.lost_steps) == (2, 4, 0)
    saves = account.checkpoints.saves[Tier.STORAGE]
    assert (saves.committed, saves.failed, saves.commits.last_ns) == (1, 1, 2.5 * S)
    assert account.checkpoints.deleted == 1


def test_a_run_without_trouble_passes_through_each_phase():
    folded = timeline(
        log(
            *start(),
            (10, 1, step(2)),
            (10.5, 1, EvaluationStarted(2)),
            (11.5, 1, EvaluationFinished(2, 3.25)),
            (13, 1, step(3)),
            (13, 1, SaveStarted(3, Tier.STORAGE)),
            (13.25, 1, SaveUnblocked(3, Tier.STORAGE)),
            (14, 1, SaveCommitted(3, Tier.STORAGE, 600)),
            (15, 1, step(4, loss=2.5)),
            (15.5, 1, TrainingFinished(4)),
            (17, 1, RunFinished(Outcome.FINISHED)),
        )
    )
    assert stretches(folded) == [
        ("startup", 0, 1),
        ("startup", 1, 3),
        ("restore", 3, 5),
        ("warmup", 5, 8),
        ("work", 8, 10.5),
        ("evaluation", 10.5, 11.5),
        ("work", 11.5, 13),
        ("save_stall", 13, 13.25),
        ("work", 13.25, 15.5),
        ("drain", 15.5, 17),
    ]
    account = folded.account
    assert (account.outcome, account.step, account.wall_ns) == (Outcome.FINISHED, 4, 17 * S)
    assert account.validation == Reading(2, 3.25)
    assert (account.loss, account.loss_step) == (2.5, 4)
    assert account.tokens_useful == 40
    # the evaluation is not a part of the step that it stood in
    assert account.step_durations.total_ns == (2 + 2 + 1.75) * S
    assert account.step_durations.count == 3
    saves = account.checkpoints.saves[Tier.STORAGE]
    assert (saves.started, saves.committed, saves.last_step, saves.bytes) == (1, 1, 3, 600)
    assert (saves.stalls.last_ns, saves.commits.last_ns) == (S // 4, S)


def test_a_failure_is_not_put_down_to_a_call_to_the_storage_that_was_survived():
    folded = timeline(
        log(
            *start(),
            (9, 1, FaultInjected("s1.1", "store.eio", "store write step-00000001-1/state.json")),
            (10, 1, step(2)),
            (15, 1, FaultInjected("f1", "kill", "rank 1")),
            (15.25, 1, KILLED),
        )
    )
    faults = folded.account.faults
    assert faults.injected == {Scope.STORAGE: {"store.eio": 1}, Scope.RANK: {"kill": 1}}
    assert set(faults.detections) == {"kill"}
    assert [restart.faults for restart in folded.account.recovery.records] == [("f1",)]


def test_a_kill_in_a_step_with_all_that_follows():
    folded = timeline(
        log(
            *start(),
            (10, 1, step(2)),
            (10, 1, SaveStarted(2, Tier.STORAGE)),
            (10.5, 1, SaveUnblocked(2, Tier.STORAGE)),
            (11, 1, SaveCommitted(2, Tier.STORAGE, 600)),
            (12, 1, step(3)),
            (14, 1, step(4)),
            (15, 1, FaultInjected("f1", "kill", "rank 1")),
            (15, 1, FaultConfirmed("f1", "gone")),
            (15.25, 1, KILLED),
            (16, 1, RanksStopped()),
            (16.5, 2, AttemptStarted(2)),
            (17, 2, RanksSpawned(2, warm=True)),
            (18, 2, RestoreStarted()),
            (19, 2, TrainingResumed(2, Tier.STORAGE, 1)),
            (22, 2, step(3)),
            (24, 2, step(4)),
            (26, 2, step(5)),
        )
    )
    assert stretches(folded) == [
        ("startup", 0, 1),
        ("startup", 1, 3),
        ("restore", 3, 5),
        ("warmup", 5, 8),
        ("work", 8, 10),
        ("save_stall", 10, 10.5),
        ("work", 10.5, 14, "lost"),
        ("interrupted", 14, 15.25),
        ("restart", 15.25, 16.5),
        ("restart", 16.5, 18),
        ("restore", 18, 19),
        ("warmup", 19, 22),
        ("work", 22, 26),
    ]
    assert numbers(folded.kept) == [(1, 1), (1, 2), (2, 3), (2, 4), (2, 5)]
    assert numbers(folded.lost) == [(1, 3), (1, 4)]
    assert folded.account.recovery.records == [
        Restart(
            attempt=1,
            cause=Cause.SIGNAL,
            reason="rank 1: SIGKILL",
            rank=1,
            failed_at_ns=15 * S + S // 4,
            last_step_at_ns=14 * S,
            last_step=4,
            next_attempt=2,
            resumed_step=2,
            tier=Tier.STORAGE,
            lost_steps=2,
            lost_ns=3 * S + S // 2,
            first_step_at_ns=22 * S,
            regained_at_ns=24 * S,
            faults=("f1",),
            phases={
                Stage.DETECT: S + S // 4,
                Stage.TEARDOWN: S * 3 // 4,
                Stage.RENDEZVOUS: S // 2,
                Stage.SPAWN: S // 2,
                Stage.INIT: S,
                Stage.RESTORE: S,
                Stage.WARMUP: 3 * S,
            },
        )
    ]
    record = folded.account.recovery.records[0]
    assert record.recovery_ns == 8 * S == sum(record.phases.values())
    assert folded.account.recovery.restarts == {"signal": 1}
    assert folded.account.faults.records == [
        Fault("f1", FaultState.CONFIRMED, "kill", "rank 1", "gone", False, 15 * S, 1)
    ]  # fmt: skip
    ledger = folded.account.ledger
    assert (ledger.useful_steps, ledger.redone_steps, ledger.lost_steps) == (5, 2, 2)
    assert (folded.account.tokens_useful, folded.account.tokens_redone) == (50, 20)


def test_a_kill_while_the_state_is_copied_cuts_the_save_short():
    folded = timeline(
        log(
            *start(),
            (10, 1, step(2)),
            (10.5, 1, SaveStarted(2, Tier.STORAGE)),
            (11, 1, KILLED),
            (12, 2, AttemptStarted(2)),
        )
    )
    assert stretches(folded)[-4:] == [
        ("work", 8, 10),
        ("interrupted", 10, 10.5),
        ("save_stall", 10.5, 11, "cut short"),
        ("restart", 11, 12),
    ]
    assert folded.account.cut_short_ns == S // 2
    assert folded.account.checkpoints.cut_short == 1


def test_a_kill_after_a_save_in_the_step_interrupts_the_work_on_both_sides_of_it():
    folded = timeline(
        log(
            *start(),
            (9, 1, SaveStarted(1, Tier.STORAGE)),
            (10, 1, SaveUnblocked(1, Tier.STORAGE)),
            (12, 1, KILLED),
        )
    )
    assert stretches(folded)[-3:] == [
        ("interrupted", 8, 9),
        ("save_stall", 9, 10),
        ("interrupted", 10, 12),
    ]


def test_a_kill_in_an_evaluation_interrupts_it_and_leaves_a_finished_one_as_it_was():
    folded = timeline(
        log(
            *start(),
            (8, 1, EvaluationStarted(1)),
            (9, 1, EvaluationFinished(1, 5.0)),
            (9, 1, EvaluationStarted(1)),
            (12, 1, KILLED),
        )
    )
    assert stretches(folded)[-2:] == [("evaluation", 8, 9), ("interrupted", 9, 12)]


def test_a_drain_ends_in_drain_with_the_steps_that_were_under_way():
    folded = timeline(
        log(
            *start(),
            (9, 1, DrainRequested(30)),
            (10, 1, step(2)),
            (10, 1, SaveStarted(2, Tier.STORAGE)),
            (11, 1, SaveUnblocked(2, Tier.STORAGE)),
            (12, 1, SaveCommitted(2, Tier.STORAGE, 5)),
            (12.5, 1, RanksStopped()),
            (13, 1, RunFinished(Outcome.DRAINED)),
        )
    )
    assert stretches(folded)[-4:] == [
        ("work", 8, 9),
        ("drain", 9, 10),
        ("save_stall", 10, 11),
        ("drain", 11, 13),
    ]
    assert folded.account.step == 2
    assert folded.account.outcome is Outcome.DRAINED


def test_a_drain_asked_for_while_the_state_is_copied_waits_for_the_copy():
    folded = timeline(
        log(
            *start(),
            (9, 1, SaveStarted(1, Tier.STORAGE)),
            (9.5, 1, DrainRequested(30)),
            (10, 1, SaveUnblocked(1, Tier.STORAGE)),
            (11, 1, step(2)),
        )
    )
    assert stretches(folded)[-3:] == [("work", 8, 9), ("save_stall", 9, 10), ("drain", 10, 11)]


def test_when_the_launcher_dies_the_run_is_down_from_the_last_entry_of_any_writer():
    folded = timeline(
        log(
            *start(),
            (10, 1, step(2)),
            (11, 1, StepTimed(2, 1, 2)),
            (41, 0, RunStarted("run", 2)),
            (42, 2, AttemptStarted(2)),
            (43, 2, RestoreStarted()),
            (44, 2, TrainingResumed(1, Tier.STORAGE, 1)),
            (45, 2, step(2)),
        )
    )
    assert stretches(folded)[4:] == [
        ("work", 8, 10, "lost"),
        ("interrupted", 10, 11),
        ("down", 11, 41),
        ("startup", 41, 42),
        ("startup", 42, 43),
        ("restore", 43, 44),
        ("warmup", 44, 45),
    ]
    account = folded.account
    assert (account.lives, account.interventions) == (2, 1)
    assert account.recovery.records == []


def test_under_plain_torchrun_the_next_attempt_tells_of_the_failure():
    folded = timeline(
        log(
            *start(),
            (10, 1, step(2)),
            (14, 2, AttemptStarted(2)),
            (15, 2, RestoreStarted()),
            (16, 2, TrainingResumed(0, None)),
            (18, 2, step(1)),
        )
    )
    assert stretches(folded)[4:] == [
        ("work", 8, 10, "lost"),
        ("interrupted", 10, 14),
        ("restart", 14, 15),
        ("restore", 15, 16),
        ("warmup", 16, 18),
    ]
    (record,) = folded.account.recovery.records
    assert (record.attempt, record.cause, record.next_attempt) == (1, None, 2)
    assert (record.lost_steps, record.recovery_ns) == (2, 8 * S)
    assert folded.account.recovery.restarts == {"unknown": 1}


def test_under_plain_torchrun_a_run_that_rank_0_had_left_may_be_started_again():
    folded = timeline(
        log(
            *start(),
            (9, 1, TrainingFinished(1)),
            (10, 1, RunFinished(Outcome.FINISHED)),
            (14, 2, AttemptStarted(2)),
            (15, 2, RestoreStarted()),
            (16, 2, TrainingResumed(1, Tier.STORAGE, 1)),
            (17, 2, TrainingFinished(1)),
            (18, 2, RunFinished(Outcome.FINISHED)),
        )
    )
    assert stretches(folded)[-6:] == [
        ("drain", 9, 10),
        ("restart", 10, 14),
        ("restart", 14, 15),
        ("restore", 15, 16),
        ("warmup", 16, 17),
        ("drain", 17, 18),
    ]
    account = folded.account
    assert (account.lives, account.attempts, account.outcome) == (1, 2, Outcome.FINISHED)


def test_going_back_behind_a_checkpoint_that_was_rejected_loses_what_it_held():
    folded = timeline(
        log(
            *start(),
            (8, 1, SaveStarted(1, Tier.STORAGE)),
            (8, 1, SaveUnblocked(1, Tier.STORAGE)),
            (8.5, 1, SaveCommitted(1, Tier.STORAGE, 5)),
            (10, 1, step(2)),
            (10, 1, SaveStarted(2, Tier.STORAGE)),
            (10, 1, SaveUnblocked(2, Tier.STORAGE)),
            (10.5, 1, SaveCommitted(2, Tier.STORAGE, 5)),
            (11, 1, KILLED),
            (12, 2, AttemptStarted(2)),
            (13, 2, RestoreStarted()),
            (13.5, 2, CheckpointRejected(2, 1, Rejection.CHECKSUM, "state.json")),
            (14, 2, TrainingResumed(1, Tier.STORAGE, 1)),
        )
    )
    assert stretches(folded)[4:6] == [("work", 8, 10, "lost"), ("interrupted", 10, 11)]
    assert folded.account.lost_ns == 2 * S
    assert folded.account.ledger.lost_steps == 1
    assert folded.account.checkpoints.rejected == {Rejection.CHECKSUM: 1}
    assert folded.account.checkpoints.rejections == [
        RejectedCheckpoint(2, 1, Rejection.CHECKSUM, "state.json", 2)
    ]


def test_a_late_step_of_a_dead_attempt_is_done_in_no_time_and_can_be_resumed_from():
    folded = timeline(
        log(
            *start(),
            (10, 1, step(2)),
            (11, 1, KILLED),
            (11.25, 1, step(3)),
            (11.5, 1, SaveStarted(3, Tier.STORAGE)),
            (11.75, 1, SaveCommitted(3, Tier.STORAGE, 5)),
            (12, 2, AttemptStarted(2)),
            (13, 2, RestoreStarted()),
            (14, 2, TrainingResumed(3, Tier.STORAGE, 1)),
            (15, 2, step(4)),
        )
    )
    assert stretches(folded)[4:7] == [
        ("work", 8, 10),
        ("interrupted", 10, 11),
        ("restart", 11, 12),
    ]
    assert numbers(folded.kept) == [(1, 1), (1, 2), (1, 3), (2, 4)]
    assert (folded.account.lost_ns, folded.account.ledger.lost_steps) == (0, 0)


def test_a_step_of_the_dead_that_comes_after_others_went_on_is_lost_at_once():
    entries = log(
        *start(),
        (10, 1, KILLED),
        (12, 2, AttemptStarted(2)),
        (13, 2, RestoreStarted()),
        (14, 2, TrainingResumed(1, Tier.STORAGE, 1)),
        (14.5, 1, step(2)),
        (15, 2, step(2)),
    )
    before = timeline(entries[:-1]).account.ledger
    assert (before.step, before.useful_steps, before.lost_steps) == (1, 2, 1)
    folded = timeline(entries)
    assert numbers(folded.kept) == [(1, 1), (2, 2)]
    assert numbers(folded.lost) == [(1, 2)]
    ledger = folded.account.ledger
    assert (ledger.useful_steps, ledger.redone_steps, ledger.lost_steps) == (2, 1, 1)


def test_a_run_taken_up_after_it_finished_was_down_in_between():
    folded = timeline(
        log(
            *start(),
            (9, 1, TrainingFinished(1)),
            (10, 1, RunFinished(Outcome.FINISHED)),
            (11, 1, FaultSkipped("f9", "the run ended first")),
            (100, 0, RunStarted("run", 2)),
            (101, 2, AttemptStarted(2)),
            (102, 2, RestoreStarted()),
            (103, 2, TrainingResumed(1, Tier.STORAGE, 1)),
            (104, 2, TrainingFinished(1)),
            (105, 2, RunFinished(Outcome.FINISHED)),
        )
    )
    assert stretches(folded)[4:] == [
        ("work", 8, 9),
        ("drain", 9, 10),
        ("down", 10, 100),
        ("startup", 100, 101),
        ("startup", 101, 102),
        ("restore", 102, 103),
        ("warmup", 103, 104),
        ("drain", 104, 105),
    ]
    assert (folded.account.lives, folded.account.interventions) == (2, 0)
    assert (folded.account.lost_ns, folded.account.wall_ns) == (0, 105 * S)


def test_an_attempt_that_fails_before_a_step_is_burnt_unless_a_fault_was_in_it():
    entries = log(
        *start(),
        (8, 1, step(2)),
        (10, 1, KILLED),
        (11, 2, AttemptStarted(2)),
        (12, 2, FailureDetected(0, Cause.EXCEPTION, "connection refused")),
        (13, 3, AttemptStarted(2)),
        (14, 3, FaultInjected("f1", "kill", "rank 0")),
        (15, 3, FailureDetected(0, Cause.SIGNAL, "SIGKILL")),
        (16, 4, AttemptStarted(2)),
        (17, 4, RestoreStarted()),
        (18, 4, TrainingResumed(1, Tier.STORAGE, 1)),
        (20, 4, step(2)),
    )
    recovery = timeline(entries).account.recovery
    assert [record.burnt for record in recovery.records] == [False, True, False]
    assert [record.next_attempt for record in recovery.records] == [2, 3, 4]
    assert [record.recovery_ns for record in recovery.records] == [12 * S, None, 12 * S]
    assert [record.lost_steps for record in recovery.records] == [1, 0, 0]
    assert recovery.burnt == 1
    assert recovery.until_first_step.count == 2
    # every nanosecond of the outage is in one stage of one record
    outage = sum(ns for record in recovery.records for ns in record.phases.values())
    assert outage == 12 * S


def test_giving_up_leaves_a_failure_without_a_restart():
    folded = timeline(
        log(
            *start(),
            (10, 1, KILLED),
            (11, 1, RunFinished(Outcome.FAILED, "restart budget used up")),
        )
    )
    recovery = folded.account.recovery
    assert (recovery.failures, recovery.restarts) == ({"signal": 1}, {})
    assert recovery.records[0].next_attempt is None
    assert folded.account.outcome_reason == "restart budget used up"


def test_a_second_kill_on_the_way_back_up_charges_lost_work_once():
    folded = timeline(
        log(
            *start(),
            (10, 1, step(2)),
            (11, 1, KILLED),
            (12, 2, AttemptStarted(2)),
            (13, 2, RestoreStarted()),
            (14, 2, TrainingResumed(1, Tier.STORAGE, 1)),
            (15, 2, KILLED),
            (16, 3, AttemptStarted(2)),
            (17, 3, RestoreStarted()),
            (18, 3, TrainingResumed(1, Tier.STORAGE, 1)),
            (20, 3, step(2)),
        )
    )
    assert folded.account.lost_ns == 2 * S
    assert [r.lost_steps for r in folded.account.recovery.records] == [1, 0]


def test_two_rollbacks_one_behind_the_other_lose_each_nanosecond_once():
    folded = timeline(
        log(
            *start(),
            (10, 1, step(2)),
            (12, 1, step(3)),
            (13, 1, KILLED),
            (14, 2, AttemptStarted(2)),
            (15, 2, RestoreStarted()),
            (16, 2, TrainingResumed(2, Tier.STORAGE, 1)),
            (17, 2, step(3)),
            (20, 2, step(4)),
            (21, 2, KILLED),
            (22, 3, AttemptStarted(2)),
            (23, 3, RestoreStarted()),
            (24, 3, TrainingResumed(1, Tier.STORAGE, 1)),
        )
    )
    lost = [s for s in stretches(folded) if "lost" in s]
    assert lost == [("work", 8, 12, "lost"), ("work", 17, 20, "lost")]
    assert folded.account.lost_ns == 7 * S


def test_an_attempt_whose_beginning_nobody_saw_begins_with_its_first_event():
    folded = timeline(
        log(
            *start(), (10, 1, step(2)), (12, 2, RestoreStarted()), (13, 2, TrainingResumed(0, None))
        )
    )
    assert stretches(folded)[-2:] == [("interrupted", 10, 12), ("restore", 12, 13)]
    assert folded.account.attempts == 2


def test_a_failed_save_and_a_deleted_one_are_counted():
    account = timeline(
        log(
            *start(),
            (9, 1, SaveStarted(1, Tier.STORAGE)),
            (9, 1, SaveUnblocked(1, Tier.STORAGE)),
            (10, 1, SaveFailed(1, Tier.STORAGE, "no space left")),
            (11, 1, CheckpointDeleted(1, 1)),
        )
    ).account
    saves = account.checkpoints.saves[Tier.STORAGE]
    assert (saves.started, saves.committed, saves.failed) == (1, 0, 1)
    assert account.checkpoints.deleted == 1
    assert account.checkpoints.under_way == []
    assert account.ledger.saved == {}


def test_a_step_that_an_attempt_does_again_without_a_resume_is_taken_as_going_back_before_it():
    folded = timeline(log(*start(), (10, 1, step(2)), (13, 1, step(3)), (15, 1, step(2))))
    assert numbers(folded.kept) == [(1, 1), (1, 2)]
    assert numbers(folded.lost) == [(1, 2), (1, 3)]
    assert stretches(folded)[-2:] == [("work", 8, 13, "lost"), ("work", 13, 15)]
    assert folded.account.lost_ns == 5 * S


def test_a_save_that_died_with_its_attempt_is_no_longer_under_way_when_the_next_one_saves():
    account = timeline(
        log(
            *start(),
            (9, 1, SaveStarted(1, Tier.STORAGE)),
            (10, 1, KILLED),
            (11, 2, AttemptStarted(2)),
            (12, 2, RestoreStarted()),
            (13, 2, TrainingResumed(0, None)),
            (14, 2, step(1)),
            (14, 2, SaveStarted(1, Tier.STORAGE)),
        )
    ).account
    assert [save.attempt for save in account.checkpoints.under_way] == [2]


def test_every_part_of_a_way_back_has_its_own_time():
    account = timeline(
        log(
            *start(),
            (10, 1, KILLED),
            (10.25, 1, StacksDumped("incidents/1")),
            (10.75, 1, RanksStopped()),
            (11, 2, AttemptStarted(2)),
            (11.5, 2, RanksSpawned(2, warm=True)),
            (12.5, 2, RestoreStarted()),
            (13, 2, StateFound(1, Tier.MEMORY)),
            (13.25, 2, GroupFormed(2)),
            (15, 2, TrainingResumed(1, Tier.MEMORY, 1)),
            (18, 2, step(2)),
            (19, 2, step(3)),
        )
    ).account
    (record,) = account.recovery.records
    assert record.phases == {
        Stage.DETECT: 2 * S,
        Stage.STACKS: S // 4,
        Stage.TEARDOWN: S // 2,
        Stage.RENDEZVOUS: S // 4,
        Stage.SPAWN: S // 2,
        Stage.INIT: S,
        Stage.RESTORE: S // 2,
        Stage.GROUP: S // 4,
        Stage.SETUP: 7 * S // 4,
        Stage.WARMUP: 3 * S,
    }
    assert list(record.phases) == list(Stage)
    assert (record.tier, record.regaining_ns) == (Tier.MEMORY, 0)


def test_a_group_that_forms_before_anyone_looks_for_a_state_is_a_part_of_joining():
    (record,) = timeline(
        log(
            *start(),
            (10, 1, KILLED),
            (11, 2, AttemptStarted(2)),
            (11.5, 2, RanksSpawned(2, warm=True)),
            (12, 2, GroupFormed(2)),
            (12.5, 2, RestoreStarted()),
            (14, 2, TrainingResumed(1, Tier.STORAGE, 1)),
        )
    ).account.recovery.records
    assert (record.phases[Stage.INIT], record.phases[Stage.RESTORE]) == (S, 3 * S // 2)


def test_word_of_the_old_ranks_that_comes_late_does_not_set_the_way_back_back():
    (record,) = timeline(
        log(
            *start(),
            (10, 1, KILLED),
            (11, 2, AttemptStarted(2)),
            (12, 2, RanksSpawned(2, warm=True)),
            (12.5, 1, RanksStopped()),
            (13, 2, RestoreStarted()),
        )
    ).account.recovery.records
    assert record.phases == {
        Stage.DETECT: 2 * S,
        Stage.TEARDOWN: S,
        Stage.SPAWN: S,
        Stage.INIT: S,
    }


def test_deleting_what_an_attempt_that_was_rolled_back_saved_forgets_nothing_that_exists():
    ledger = Ledger()
    for attempt in (1, 2):
        ledger.resume(0, at_ns=0, productive_ns=10 * attempt - 10)
        ledger.finish(1, at_ns=10 * attempt, productive_ns=10 * attempt)
        ledger.save(1, attempt)
    ledger.forget(1, attempt=1)
    assert ledger.saved == {1: (2, (1, 10, 20))}
    ledger.forget(1, attempt=2)
    assert ledger.saved == {}


def test_a_save_beyond_the_step_that_was_resumed_from_has_no_mark_any_more():
    ledger = Ledger()
    ledger.finish(1, at_ns=10, productive_ns=10)
    ledger.finish(2, at_ns=20, productive_ns=20)
    ledger.save(2, attempt=1)
    ledger.resume(1, at_ns=30, productive_ns=20)
    assert ledger.saved == {}
    assert ledger.lost_ns == 10


def test_what_a_rank_says_of_itself_is_kept_by_rank():
    entries = log(
        *start(),
        (9, 1, RankJoined(77, 123, 1, "n1", "GPU-1")),
        (10, 1, StepTimed(1, 20, 30)),
        (11, 1, StateDigested(1, {"model": "ab"})),
    )
    assert timeline(entries).account.ranks == {
        0: Rank(77, 123, 1, 9 * S, 1, 20, 30, 1, {"model": "ab"}, 1, "n1", "GPU-1")
    }


def test_time_without_a_failure_is_shown_before_it_is_counted():
    fold = Fold()
    for entry in log(*start(), (9, 1, SaveStarted(1, Tier.STORAGE))):
        fold.feed(entry)
    assert fold.wall_ns == 8 * S
    assert fold.unsettled(12 * S) == [
        Segment(Phase.WORK, 8 * S, 9 * S, 1),
        Segment(Phase.SAVE_STALL, 9 * S, 12 * S, 1),
    ]


# ── what holds for every log ────────────────────────────────────────────────────────────────────


@settings(max_examples=60, deadline=None)
@given(walks())
def test_segments_follow_each_other_without_gap_or_overlap(entries: list[Entry]):
    folded = timeline(entries)
    assert all(s.end_ns > s.start_ns for s in folded.segments)
    assert all(before.end_ns == after.start_ns for before, after in pairwise(folded.segments))
    if folded.segments:
        assert folded.segments[0].start_ns == folded.account.start_ns
        assert folded.segments[-1].end_ns == folded.account.meter.settled_ns


@settings(max_examples=60, deadline=None)
@given(walks())
def test_time_is_conserved_to_the_nanosecond(entries: list[Entry]):
    folded = timeline(entries)
    by_phase: Counter[Phase] = Counter()
    for segment in folded.segments:
        by_phase[segment.phase] += segment.duration_ns
    account = folded.account
    assert {phase: ns for phase, ns in account.totals.items() if ns} == by_phase
    assert sum(account.totals.values()) == account.wall_ns
    assert sum(s.duration_ns for s in folded.segments if s.lost) == account.lost_ns
    assert sum(s.duration_ns for s in folded.segments if s.cut_short) == account.cut_short_ns
    assert all(s.phase in PRODUCTIVE for s in folded.segments if s.lost)


@settings(max_examples=60, deadline=None)
@given(walks())
def test_every_step_that_the_run_holds_is_kept_exactly_once(entries: list[Entry]):
    folded = timeline(entries)
    ledger = folded.account.ledger
    finished = [entry for entry in entries if isinstance(entry.event, StepFinished)]
    assert [n for _, n in numbers(folded.kept)] == list(range(1, ledger.step + 1))
    assert Counter(map(id, [*folded.kept, *folded.lost])) == Counter(map(id, finished))
    assert len(folded.lost) == ledger.lost_steps
    assert ledger.useful_steps + ledger.redone_steps - ledger.lost_steps == ledger.step


@settings(max_examples=40, deadline=None)
@given(walks(120))
def test_no_prefix_takes_back_what_a_counter_reported(entries: list[Entry]):
    before: dict[str, int] = {}
    for fold in prefixes(entries):
        now = counters(fold)
        assert {name: (ns, now[name]) for name, ns in before.items() if now[name] < ns} == {}
        before = now


def counters(fold: Fold) -> dict[str, int]:
    """Everything in a fold that is a count or a total."""
    counts = {
        "lost": fold.lost_ns,
        "cut short": fold.cut_short_ns,
        "wall": fold.wall_ns,
        "late": fold.late,
        "lives": fold.lives,
        "interventions": fold.interventions,
        "attempts": fold.attempts,
        "useful": fold.ledger.useful_steps,
        "redone": fold.ledger.redone_steps,
        "lost steps": fold.ledger.lost_steps,
        "tokens": fold.tokens_useful,
        "tokens again": fold.tokens_redone,
        "burnt": fold.recovery.burnt,
        "deleted": fold.checkpoints.deleted,
    }
    histograms = {"steps": fold.step_durations, "back": fold.recovery.until_first_step}
    histograms["regained"] = fold.recovery.until_regained
    histograms |= {f"stage {key}": value for key, value in fold.recovery.stages.items()}
    histograms |= {f"restore {key}": value for key, value in fold.checkpoints.restores.items()}
    histograms |= {f"detect {key}": value for key, value in fold.faults.detections.items()}
    for tier, saves in fold.checkpoints.saves.items():
        counts |= {
            f"{tier} started": saves.started,
            f"{tier} committed": saves.committed,
            f"{tier} failed": saves.failed,
            f"{tier} superseded": saves.superseded,
            f"{tier} bytes": saves.bytes,
            f"{tier} restored": saves.restored_bytes,
        }
        histograms |= {f"{tier} stalls": saves.stalls, f"{tier} commits": saves.commits}
    for name, by_key in {
        "total": fold.totals,
        "paid": fold.rank_totals,
        "failures": fold.recovery.failures,
        "restarts": fold.recovery.restarts,
        "rejected": fold.checkpoints.rejected,
        "incidents": fold.recovery.incidents,
        **{f"injected {scope}": kinds for scope, kinds in fold.faults.injected.items()},
        "states": fold.faults.states,
    }.items():
        counts |= {f"{name} {key}": value for key, value in by_key.items()}  # type: ignore[attr-defined]
    for name, histogram in histograms.items():
        counts |= {f"{name} {place}": n for place, n in enumerate(histogram.counts)}
        counts[f"{name} total"] = histogram.total_ns
    return counts


@settings(max_examples=40, deadline=None)
@given(walks())
def test_a_fold_taken_from_its_plain_data_goes_on_as_if_nothing_had_happened(entries: list[Entry]):
    straight, resumed = Fold(), Fold()
    for place, entry in enumerate(entries):
        assert list(straight.feed(entry)) == list(resumed.feed(entry))
        if place % 7 == 0:
            resumed = msgspec.msgpack.decode(msgspec.msgpack.encode(resumed), type=Fold)
    assert straight == resumed


@settings(max_examples=40, deadline=None)
@given(walks())
def test_a_fold_that_lists_little_counts_the_same(entries: list[Entry]):
    brief = Fold(keep=2)
    for entry in entries:
        brief.feed(entry)
    whole = timeline(entries).account
    assert (brief.meter, brief.ledger) == (whole.meter, whole.ledger)
    assert brief.recovery.failures == whole.recovery.failures
    assert brief.recovery.restarts == whole.recovery.restarts
    assert brief.faults.states == whole.faults.states
    ends = [(record.attempt, record.failed_at_ns) for record in whole.recovery.records[-2:]]
    assert [(record.attempt, record.failed_at_ns) for record in brief.recovery.records] == ends
    assert len(brief.faults.records) <= 2


# ── the table in the docs ───────────────────────────────────────────────────────────────────────


def test_the_diagram_in_the_docs_is_drawn_from_the_table():
    page = Path(__file__).parents[2] / "docs" / "timeline.md"
    drawn = f"```mermaid\n{diagram()}```\n"
    assert drawn in page.read_text(), f"put this into {page}:\n{drawn}"


def test_the_diagram_shows_each_phase_that_can_be_entered():
    reached = {target for row in NEXT_PHASE.values() for target in row.values()} - {None}
    assert reached == set(NEXT_PHASE) - {Phase.DOWN}
    assert all(f"--> {phase}:" in diagram() for phase in reached)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.INTERRUPTED])
def test_every_phase_but_the_one_of_hindsight_has_a_row(phase: Phase):
    assert phase in NEXT_PHASE


# ── golden logs: they read and fold for ever as they do now ─────────────────────────────────────

LOGS = Path(__file__).parents[1] / "logs"


def golden(name: str, tmp_path: Path) -> Timeline:
    run_dir = RunDir.at(tmp_path)
    run_dir.create()
    run_dir.event_file("golden").write_bytes((LOGS / f"{name}.jsonl").read_bytes())
    return timeline(read(run_dir))


def test_the_golden_log_of_a_kill_folds_as_ever(tmp_path: Path):
    folded = golden("kill", tmp_path)
    account = folded.account
    assert {phase.value: ns / 1e6 for phase, ns in account.totals.items()} == {
        "startup": 210,
        "restore": 990 + 390,
        "warmup": 1000 + 500,
        "work": 3000 + 2000 + 1000 + 1000 + 3100,
        "evaluation": 500 + 500,
        "save_stall": 200 + 200,
        "interrupted": 300,
        "restart": 310,
        "drain": 810,
        "down": 0,
    }
    assert (account.lost_ns, account.wall_ns) == (3_500_000_000, 16_010_000_000)
    assert numbers(folded.kept) == [(1, n) for n in range(1, 5)] + [(2, n) for n in range(5, 10)]
    assert numbers(folded.lost) == [(1, 5), (1, 6), (1, 7), (1, 8)]
    (record,) = account.recovery.records
    assert (record.faults, record.recovery_ns) == (("kill-1",), 1_500_000_000)
    assert account.ranks[0].digests == {"model": "c0ffee", "rng": "00"}
    assert account.outcome is Outcome.FINISHED


def test_the_golden_log_of_schema_1_has_every_event(tmp_path: Path):
    run_dir = RunDir.at(tmp_path)
    run_dir.create()
    run_dir.event_file("golden").write_bytes((LOGS / "schema-1.jsonl").read_bytes())
    kinds = {type(entry.event) for entry in read(run_dir)}
    assert kinds == set(event_types().values())
    account = timeline(read(run_dir)).account
    assert account.outcome is Outcome.DRAINED
    assert account.loss == math.inf
    assert account.validation is not None
    assert math.isnan(account.validation.value)
    assert account.faults.states == dict.fromkeys(FaultState, 1)
    assert account.checkpoints.rejected == {Rejection.TORN: 1}
    assert (account.findings.grad_norm, account.findings.clipped) == (1.5, 4)
    assert account.findings.nonfinite_steps == 1
    assert account.speed.arithmetic is not None
    assert account.speed.arithmetic.counted_flops == 7.5e6
    assert (account.findings.replicas.made, account.findings.replicas.unequal) == (1, 1)
    assert (account.findings.audits.made, account.findings.audits.unequal) == (1, 0)


def test_the_golden_log_with_torn_lines_and_news_of_a_later_version(tmp_path: Path):
    folded = golden("torn", tmp_path)
    assert numbers(folded.kept) == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 5)]
    assert folded.account.recovery.restarts == {"unknown": 1}


def test_the_golden_log_of_a_real_run_with_two_kills(tmp_path: Path):
    folded = golden("two-kills", tmp_path)
    account = folded.account
    assert {phase.value: ns for phase, ns in account.totals.items()} == {
        "startup": 1_354_088_549,
        "restore": 873_456_524,
        "warmup": 511_372_554,
        "work": 3_791_261_850,
        "evaluation": 513_709_628,
        "save_stall": 196_552_839,
        "interrupted": 162_919_703,
        "restart": 452_476_565,
        "drain": 1_283_686_095,
        "down": 0,
    }
    assert (account.lost_ns, account.wall_ns) == (596_015_890, 9_139_524_307)
    assert [n for _, n in numbers(folded.kept)] == list(range(1, 41))
    assert len(folded.lost) == account.ledger.lost_steps == 6
    assert account.recovery.restarts == {"signal": 2}
    recoveries = [record.recovery_ns for record in account.recovery.records]
    assert recoveries == [837_052_513, 805_678_474]
    assert [sum(r.phases.values()) for r in account.recovery.records] == recoveries
    assert [(f.id, f.state.value) for f in account.faults.records] == [
        ("f1", "confirmed"),
        ("f2", "confirmed"),
        ("f3", "skipped"),
    ]


BEGUN, UNBLOCKED = SaveStarted(1, Tier.MEMORY), SaveUnblocked(1, Tier.MEMORY)
STORED = SaveCommitted(1, Tier.MEMORY, 8)
TWO_STOPS: list[tuple[float, int, Event]] = [
    *start(),
    (9, 1, BEGUN),
    (9.25, 1, UNBLOCKED),
    (10, 1, SaveStarted(1, Tier.MEMORY, rest=True)),
    (10.5, 1, UNBLOCKED),
]


def test_a_save_that_stops_training_twice_is_one_save_with_one_stall_of_both_times():
    account = timeline(log(*TWO_STOPS, (11, 1, step(2)), (11, 1, STORED))).account
    saves = account.checkpoints.saves[Tier.MEMORY]
    assert (saves.started, saves.committed, saves.stalls.count) == (1, 1, 1)
    assert (saves.stalls.total_ns, saves.commits.total_ns) == (3 * S // 4, 2 * S)
    assert saves.stalls.last_ns == 3 * S // 4
    assert account.totals[Phase.SAVE_STALL] == 3 * S // 4


@pytest.mark.parametrize(
    "then",
    [
        [(11, 1, STORED)],
        [(11, 1, SaveFailed(1, Tier.MEMORY, "no room"))],
        [(11, 1, SaveStarted(2, Tier.MEMORY))],
        [(11, 1, KILLED), (12, 1, STORED)],
        [(11, 1, RunFinished(Outcome.FINISHED))],
        [(11, 0, RunStarted("r", 2))],
    ],
    ids=["committed", "failed", "followed", "killed", "finished", "launched again"],
)
def test_a_stall_is_counted_once_it_cannot_grow(then: list[tuple[float, int, Event]]):
    told = [
        (stalls.count, stalls.total_ns)
        for fold in prefixes(log(*TWO_STOPS, *then))
        for stalls in [fold.checkpoints.saves.get(Tier.MEMORY, Saves()).stalls]
    ]
    assert told == [(0, 0)] * len(TWO_STOPS) + [(1, 3 * S // 4)] * len(then)


def test_a_save_that_is_whole_before_training_has_noticed_stalls_it_until_then():
    account = timeline(
        log(*TWO_STOPS[:-1], (10.25, 1, STORED), (10.5, 1, UNBLOCKED), (11, 1, step(2)))
    ).account
    stalls = account.checkpoints.saves[Tier.MEMORY].stalls
    assert (stalls.count, stalls.total_ns) == (1, S // 2)


def test_the_stop_that_a_failure_cuts_short_is_no_part_of_a_stall():
    account = timeline(log(*TWO_STOPS[:-1], (10.25, 1, KILLED), (11, 1, STORED))).account
    checkpoints = account.checkpoints
    assert checkpoints.cut_short == 1
    assert checkpoints.saves[Tier.MEMORY].stalls.total_ns == S // 4


def test_the_rest_of_a_copy_belongs_to_its_own_tier():
    account = timeline(
        log(
            *TWO_STOPS[:-2],
            (9.25, 1, SaveStarted(1, Tier.STORAGE)),
            (9.5, 1, SaveUnblocked(1, Tier.STORAGE)),
            *TWO_STOPS[-2:],
            (11, 1, SaveCommitted(1, Tier.STORAGE, 8)),
            (11, 1, STORED),
        )
    ).account
    saves = account.checkpoints.saves
    assert {tier: (of.stalls.count, of.stalls.total_ns) for tier, of in saves.items()} == {
        Tier.MEMORY: (1, 3 * S // 4),
        Tier.STORAGE: (1, S // 4),
    }


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (step(0), "StepFinished of step 0: it is 1 at least"),
        (step(-1), "StepFinished of step -1: it is 1 at least"),
        (TrainingResumed(-1, None), "TrainingResumed of step -1: it is 0 at least"),
    ],
)
def test_a_step_before_the_first_cannot_have_happened(event: Event, said: str):
    before = start()[:3] if isinstance(event, TrainingResumed) else start()[:4]
    with pytest.raises(TimelineError, match=said):
        timeline(log(*before, (8, 1, event)))
