"""Going back after a spike: what rank 0 of one attempt notes for that of the next, and where that resumes.

The note holds until another attempt has chosen its state: lineage keeps that choice from there on.
"""

import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from harness.replace import replace_file
from harness.rundir import RunDir
from harness.signals.spikes import Spike
from harness.signals.unsound import SpikeError

LOG = logging.getLogger("harness")


@dataclass(frozen=True, slots=True)
class Note:
    """Of the spike that ended an attempt."""

    attempt: int
    last: int
    """The last step whose loss did not stand out."""
    losses: Sequence[float] = ()
    """As usual, up to that of this step: a spike that comes again is to be seen again."""
    schema: int = 1

    @property
    def before(self) -> int:
        """Steps of the newest state that is from before it: the update of the `last` step may be the cause."""
        return max(0, self.last - 1)


class Rollback:
    """Rank 0's part in an attempt that is to end by a spike."""

    def __init__(self, run_dir: RunDir, attempt: int) -> None:
        self._run_dir = run_dir
        self._attempt = attempt

    def go_back(self, step: int, found: Spike, losses: Sequence[float], in_a_row: int) -> None:
        """Note it, and end the attempt. `losses` are those before the `in_a_row` that stand out."""
        note = Note(self._attempt, step - in_a_row, losses)
        try:
            replace_file(self._run_dir.rollback, msgspec.json.encode(note))
        except OSError as error:
            LOG.warning("harness: the next attempt resumes from the newest state: %s", error)
        raise SpikeError(
            f"the loss of step {step} is {found.loss:.4g} after a median of {found.usual:.4g}: a state"
            f" of at most {note.before} steps is gone back to; on_spike = report goes on instead"
        )

    def losses(self, resumed: int) -> Sequence[float]:
        """Those before the steps that are to be done again, after `resumed` of them."""
        note = read(self._run_dir)
        if note is None or note.attempt >= self._attempt or resumed > note.last:
            return ()
        return note.losses[: max(0, len(note.losses) - (note.last - resumed))]


def before(run_dir: RunDir, departed: Collection[int]) -> int | None:
    """Of how many steps a state may be at most that is resumed from; None where any will do.

    `departed` are the attempts that have chosen their state.
    """
    note = read(run_dir)
    return None if note is None or note.attempt != max(departed, default=0) else note.before


def read(run_dir: RunDir) -> Note | None:
    """The newest note, if there is one that makes sense."""
    try:
        note = msgspec.json.decode(run_dir.rollback.read_bytes(), type=Note)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return note if all(map(math.isfinite, note.losses)) else None
