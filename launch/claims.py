"""Whether an attempt that could get no number from the storage is tried again. Decides, from what failed how often.

An outage passes, and so may the lack of room; a job that waited loses nothing. A refusal would only
come again.
"""

from harness.checkpoint.patience import may_pass
from harness.events import Outcome
from harness.storage import is_full
from launch import backoff
from launch.ends import Again, Ending

MOST_FAILURES = 6
"""So many in a row, each after the storage's own time-out, and the job ends."""
FIRST_WAIT_S, MOST_WAIT_S = 1.0, 60.0
AFTERWARDS = "once that is mended, launch it again to go on"


def decide(failures: int, error: Exception) -> Again | Ending:
    """What follows the `failures`-th failure in a row to claim an attempt, which was `error`."""
    if failures >= MOST_FAILURES or not (may_pass(error) or is_full(error)):
        times = f" {failures} times in a row" if failures > 1 else ""
        reason = f"no attempt can be claimed in the storage{times}: {error}; {AFTERWARDS}"
        return Ending(Outcome.FAILED, reason)
    return Again(backoff.wait_s(failures + 1, FIRST_WAIT_S, MOST_WAIT_S))
