import errno

import pytest

from harness.checkpoint.store import StoreError
from harness.events import Outcome
from launch.claims import decide
from launch.ends import Again, Ending

OUTAGE = TimeoutError(errno.ETIMEDOUT, "the storage did not answer")


def test_an_outage_is_waited_for_ever_longer_and_not_for_ever():
    waits = [decide(failures, OUTAGE) for failures in range(1, 6)]
    assert waits == [Again(1.0), Again(2.0), Again(4.0), Again(8.0), Again(16.0)]
    assert decide(6, OUTAGE) == Ending(
        Outcome.FAILED,
        f"no attempt can be claimed in the storage 6 times in a row: {OUTAGE}; once that is mended,"
        " launch it again to go on",
    )


def test_room_that_is_lacking_may_be_made():
    assert decide(1, OSError(errno.ENOSPC, "No space left on device")) == Again(1.0)


@pytest.mark.parametrize(
    "refusal", [StoreError("it was emptied"), PermissionError(errno.EACCES, "no")]
)
def test_a_refusal_ends_the_job_at_once(refusal):
    reason = (
        f"no attempt can be claimed in the storage: {refusal}; once that is mended, launch it again"
        " to go on"
    )
    assert decide(1, refusal) == Ending(Outcome.FAILED, reason)
