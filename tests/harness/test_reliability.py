import pytest

from harness.account import Account
from harness.events import Cause, Event, FailureDetected, SaveCommitted, SaveStarted, Tier
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
