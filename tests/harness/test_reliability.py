import pytest

from harness.account import Account
from harness.events import (
    Cause,
    Event,
    FailureDetected,
    SaveCommitted,
    SaveStarted,
    SaveUnblocked,
    Tier,
)
from harness.fold import Fold
from harness.reliability import best_measured_interval_s, failures_seen, up_s
from tests.harness.runs import log, start, step


def told(*more: tuple[float, int, Event]) -> Account:
    """What is known after a run of one attempt, whose first step is done in the eighth second."""
    fold = Fold()
    for entry in log(*start(), *more):
        fold.feed(entry)
    return fold


def test_work_that_waits_for_its_step_counts_as_time_up_and_the_way_there_does_not():
    stored = SaveCommitted(1, Tier.STORAGE, 10)
    assert up_s(told()) == 0
    assert up_s(told((10, 1, step(2)))) == 2
    assert up_s(told((10, 1, step(2)), (13, 1, stored))) == 5
    assert up_s(told((10, 1, step(2)), (13, 1, SaveStarted(2, Tier.STORAGE)), (14, 1, stored))) == 6


def test_nothing_is_known_of_failures_before_there_was_time_for_one():
    assert failures_seen(told()) is None


@pytest.mark.parametrize(("cause", "count"), [(Cause.HANG, 1), (Cause.PREEMPTION, 0)])
def test_a_preemption_is_nobodys_failure(cause: Cause, count: int):
    seen = failures_seen(told((10, 1, step(2)), (18, 1, FailureDetected(0, cause, "it was told"))))
    assert seen is not None
    assert (seen.failures, seen.up_s) == (count, 10)


def test_without_a_save_or_a_failure_no_interval_is_best():
    failed = FailureDetected(0, Cause.HANG, "it was told")
    assert best_measured_interval_s(told((10, 1, step(2))), Tier.STORAGE) is None
    assert best_measured_interval_s(told((10, 1, step(2)), (11, 1, failed)), Tier.STORAGE) is None


def test_the_best_interval_is_that_of_all_that_a_save_stops_training_for():
    def best(*stops: tuple[float, int, Event]) -> float | None:
        failed = FailureDetected(0, Cause.HANG, "it was told")
        stored = SaveCommitted(2, Tier.STORAGE, 8)
        ended = [(10.75, 1, step(3)), (11, 1, stored), (12, 1, failed)]
        return best_measured_interval_s(told((9, 1, step(2)), *stops, *ended), Tier.STORAGE)

    begun, rest = SaveStarted(2, Tier.STORAGE), SaveStarted(2, Tier.STORAGE, rest=True)
    unblocked = SaveUnblocked(2, Tier.STORAGE)
    whole = best((9, 1, begun), (9.75, 1, unblocked))
    assert whole is not None
    assert best((9, 1, begun), (9.25, 1, unblocked), (10, 1, rest), (10.5, 1, unblocked)) == whole
