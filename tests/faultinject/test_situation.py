import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultinject.situation import (
    Defer,
    Leave,
    Move,
    Settle,
    Situation,
    Skip,
    Strike,
    Wait,
    decide,
)
from faultinject.tape import Fault, Rank, Tape
from harness.events import (
    AttemptStarted,
    Cause,
    Entry,
    Event,
    FailureDetected,
    FaultConfirmed,
    FaultDeferred,
    FaultInjected,
    FaultSkipped,
    Outcome,
    RankJoined,
    RunFinished,
    RunStarted,
    SaveCommitted,
    StepFinished,
    Tier,
    TrainingFinished,
)

FIRST = Fault("f1", 10.0, "kill", Rank(1))
SECOND = Fault("f2", 10.5, "kill", Rank(0))
TAPE = Tape(0, "plan", 2, (FIRST, SECOND))

FAILED = FailureDetected(1, Cause.SIGNAL, "killed")
COMMITTED = SaveCommitted(1, Tier.STORAGE, 10)


def step(number: int) -> StepFinished:
    return StepFinished(number, 0, 0)


def after(*log: tuple[float, int, Event], lethal: tuple[str, ...] = ("kill",)) -> Situation:
    """The situation after events at seconds on the run's axis, each with its attempt."""
    situation = Situation(frozenset(lethal))
    for at_s, attempt, event in log:
        situation.feed(Entry(int(at_s * 1e9), attempt, 0, event))
    return situation


def move(situation: Situation, now_s: float) -> Move:
    return decide(int(now_s * 1e9), TAPE, situation)


UP = (
    (0.0, 0, RunStarted("r", 2)),
    (0.0, 1, AttemptStarted(2)),
    (1.0, 1, RankJoined(7, 7)),
    (2.0, 1, step(1)),
    (3.0, 1, COMMITTED),
)
HIT = (*UP, (13.0, 1, FaultInjected("f1", "kill", "rank 1")), (13.1, 1, FaultConfirmed("f1")))


def test_before_the_first_committed_save_there_is_no_tape_time():
    assert move(after(*UP[:-1]), now_s=1e6) == Wait(None, "no save has been committed yet")


def test_tape_time_counts_from_the_first_committed_save_and_from_no_later_one():
    situation = after(*UP, (8.0, 1, COMMITTED))

    assert move(situation, 12.999) == Wait(13_000_000_000, "f1 is next: kill of rank 1 at 10.0 s")
    assert move(situation, 13.0) == Strike(FIRST, attempt=1)


def test_an_injected_fault_is_settled_before_another_one_is_looked_at():
    assert move(after(*HIT[:-1]), 99) == Settle(FIRST, attempt=1)


def test_after_a_lethal_fault_the_next_one_waits_for_a_step_of_another_attempt():
    late_step_of_a_survivor = (13.2, 1, step(9))
    again = ((14.0, 2, AttemptStarted(2)), (14.5, 2, RankJoined(8, 8)))

    assert move(after(*HIT), 13.5) == Defer(
        SECOND, "attempt 1 was hit by f1, and no other has started"
    )
    assert isinstance(move(after(*HIT, late_step_of_a_survivor), 13.5), Defer)
    assert move(after(*HIT, (13.4, 1, FAILED), *again), 15) == Defer(
        SECOND, "attempt 2 has not finished a step yet"
    )
    assert move(after(*HIT, (13.4, 1, FAILED), *again, (16, 2, step(5))), 16) == Strike(SECOND, 2)


def test_after_a_fault_that_ends_nothing_the_next_one_comes_at_its_instant():
    situation = after(*HIT, lethal=())

    assert move(situation, 13.4) == Wait(13_500_000_000, "f2 is next: kill of rank 0 at 10.5 s")
    assert move(situation, 13.5) == Strike(SECOND, 1)


def test_a_fault_that_falls_due_in_a_restart_that_it_did_not_cause_waits_too():
    assert move(after(*UP, (12.0, 1, FAILED)), 13) == Defer(
        FIRST, "attempt 1 failed, and no other has started"
    )


def test_nothing_strikes_once_the_last_step_is_done():
    assert move(after(*UP, (12.0, 1, TrainingFinished(9))), 13) == Defer(
        FIRST, "attempt 1 has trained to its end, and no other has started"
    )


def test_what_is_left_when_the_run_finishes_is_skipped():
    situation = after(*HIT, (14.0, 1, RunFinished(Outcome.FINISHED)))

    assert move(situation, 14) == Skip(SECOND, "the run finished first")
    situation.feed(Entry(0, 1, 0, FaultSkipped("f2", "")))
    assert move(situation, 14) == Leave("every fault of the tape is accounted for")


def test_the_run_has_finished_as_soon_as_its_last_step_is_durable():
    trained = (*UP, (5.0, 1, TrainingFinished(9)))

    assert isinstance(move(after(*trained), 6), Wait)
    assert isinstance(move(after(*trained, (5.5, 1, SaveCommitted(8, Tier.STORAGE, 1))), 6), Wait)
    last = (5.5, 1, SaveCommitted(9, Tier.STORAGE, 1))
    assert move(after(*trained, last), 6) == Skip(FIRST, "the run finished first")
    crash_in_tear_down = (5.6, 1, FAILED)
    assert isinstance(move(after(*trained, last, crash_in_tear_down), 6), Skip)


@pytest.mark.parametrize("outcome", [Outcome.DRAINED, Outcome.INTERRUPTED, Outcome.FAILED])
def test_what_is_left_when_the_launcher_leaves_early_waits_for_the_run_to_go_on(outcome):
    situation = after(*HIT, (14.0, 1, RunFinished(outcome)))

    assert move(situation, 14) == Leave(
        f"the run was {outcome}; what is left waits for it to go on"
    )


@pytest.mark.parametrize("outcome", Outcome)
def test_a_run_that_was_taken_up_again_has_not_ended(outcome):
    trained = (*UP, (4.0, 1, TrainingFinished(1)))
    situation = after(*trained, (5.0, 1, RunFinished(outcome)), (6.0, 1, RunStarted("r", 2)))

    assert isinstance(move(situation, 7), Wait)


def test_time_in_which_no_launcher_lived_is_no_tape_time():
    drained = after(*UP, (5.0, 1, RunFinished(Outcome.DRAINED)), (1005.0, 1, RunStarted("r", 2)))
    killed = after(*UP, (5.0, 1, step(2)), (1005.0, 1, RunStarted("r", 2)))

    for situation in (drained, killed):
        assert move(situation, 1006) == Wait(
            1_013_000_000_000, "f1 is next: kill of rank 1 at 10.0 s"
        )


def test_what_an_injector_wrote_is_no_sign_of_life_of_a_launcher():
    situation = after(*UP, (900.0, 1, FaultDeferred("f1", "")), (1003.0, 1, RunStarted("r", 2)))

    assert situation.zero_ns == 1_003_000_000_000


def test_a_restart_within_a_launchers_life_is_tape_time():
    situation = after(*UP, (5.0, 1, FAILED), (60.0, 2, AttemptStarted(2)), (61.0, 2, step(2)))

    assert move(situation, 61) == Strike(FIRST, 2)


def test_a_rank_that_the_job_has_no_more_is_skipped():
    situation = after(*UP, (5.0, 1, FAILED), (6.0, 2, AttemptStarted(1)), (7.0, 2, step(2)))

    assert move(situation, 13) == Skip(FIRST, "rank 1 does not exist at 1 ranks")


def test_what_an_injector_wrote_may_be_fed_twice():
    once, twice = after(*HIT), after(*HIT, *HIT[-2:])

    assert once == twice


rank_events = st.sampled_from(
    [
        step(1),
        COMMITTED,
        FAILED,
        AttemptStarted(2),
        RankJoined(1, 1),
        TrainingFinished(3),
        RunStarted("r", 2),
        RunFinished(Outcome.FAILED),
        RunFinished(Outcome.DRAINED),
    ]
)


@given(st.lists(st.tuples(st.integers(1, 100), rank_events), max_size=60))
def test_in_any_life_of_a_run_each_fault_strikes_at_most_once_and_all_are_accounted(story):
    """Acts out every move at once, as an injector does, over any order of events."""
    situation = after()
    now_ns, attempt, struck, struck_attempts = 0, 1, [], []
    for seconds, event in [*story, (1, RunFinished(Outcome.FINISHED))]:
        now_ns += seconds * 10**9
        attempt += isinstance(event, AttemptStarted)
        situation.feed(Entry(now_ns, attempt, 0, event))
        for _ in range(10):
            chosen = decide(now_ns, TAPE, situation)
            match chosen:
                case Strike(fault=fault, attempt=hit):
                    struck.append(fault.id)
                    struck_attempts.append(hit)
                    told: Event = FaultInjected(fault.id, fault.kind, str(fault.target))
                case Settle(fault=fault):
                    told = FaultConfirmed(fault.id)
                case Skip(fault=fault):
                    told = FaultSkipped(fault.id, "")
                case _:
                    break
            situation.feed(Entry(now_ns, attempt, 0, told))

    assert isinstance(decide(now_ns, TAPE, situation), Leave)
    assert len(set(struck)) == len(struck)
    assert len(set(struck_attempts)) == len(struck_attempts)
    assert set(struck) | situation.skipped == {"f1", "f2"}
    assert not set(struck) & situation.skipped
