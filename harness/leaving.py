"""How a rank leaves the job: after its last step, or after the one that all agreed on.

Either way its state is durable first. Where no launcher of ours does, rank 0 says how the run ended. A
loop that was left otherwise is told how to end.
"""

import atexit
import logging
import sys
from typing import NoReturn

from torch.distributed import PrefixStore

from harness import events
from harness.drain import Drain
from harness.enrolment import launched_by_us
from harness.events import EXIT_CODES, Outcome
from harness.keeping import Keeping
from harness.membership import another_client, without_prefix
from harness.sigterm import Notice
from harness.slots import Mark
from harness.voice import Voice

LOG = logging.getLogger("harness")

TORCHRUN_GRACE_S = 30.0
"""What torchrun gives its ranks between SIGTERM and SIGKILL."""


def listen(messages: PrefixStore, rank: int, world_size: int, notice: Notice) -> Drain:
    """Hear whether the machine is wanted back, from a launcher or by `notice`."""
    # Plain torchrun's one store outlives an attempt: what was asked of it is not to reach the next.
    place = without_prefix(messages) if launched_by_us() else messages
    answers = another_client(messages)
    return Drain(another_client(place), answers, rank, world_size, notice)


def drained(voice: Voice, keeping: Keeping, step: int) -> NoReturn:
    """Save the state after `step` steps and go, by `SystemExit`: somebody wants the machine back."""
    if not launched_by_us():
        voice.tell(events.DrainRequested(TORCHRUN_GRACE_S))
    keeping.save_last(step)
    voice.show(mark=Mark.DRAINED)
    if not launched_by_us():
        atexit.register(voice.tell, events.RunFinished(Outcome.DRAINED, f"saved after step {step}"))
    raise SystemExit(EXIT_CODES[Outcome.DRAINED])


def finished(voice: Voice, keeping: Keeping, notice: Notice, step: int) -> None:
    """Training is done: save the state after `step` steps, and no longer notice SIGTERM."""
    voice.tell(events.TrainingFinished(step))
    keeping.save_last(step)
    voice.show(mark=Mark.FINISHED)
    notice.ignore()
    if not launched_by_us():
        atexit.register(voice.tell, events.RunFinished(Outcome.FINISHED))


def left(step: int) -> None:
    """The loop went out of `step` by itself. At exit we know whether an exception did that, which says all."""
    atexit.register(_say_left, step)


def _say_left(step: int) -> None:
    if getattr(sys, "last_value", None) is None:
        LOG.warning("harness: the loop was left in step %d: end it by job.stop()", step)
