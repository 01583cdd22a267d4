"""How a rank speaks: events into its log, signs of life into its slot.

Once it has begun, losing its voice kills no rank. A full disk takes the log and must not take the
training: what cannot be written is said once on stderr, and the seconds that it would have told of
are accounted to the phase before.
"""

import logging

from harness.events import Event
from harness.recorder import Recorder
from harness.rundir import RunDir
from harness.slots import Mark, SlotWriter

LOG = logging.getLogger("harness")


class Voice:
    """One rank's log and slot, for as long as its process lives."""

    def __init__(self, run_dir: RunDir, run_id: str, rank: int, attempt: int) -> None:
        self.slot = SlotWriter(run_dir.slot(rank), attempt)
        self._rank = rank
        self._recorder = Recorder(run_dir, run_id, f"rank-{rank}", attempt)
        self._lost = False

    @property
    def event_file(self) -> str:
        """The file that this rank holds open and locked."""
        return str(self._recorder.path)

    def write(self, event: Event, at_ns: int | None = None) -> None:
        """Write an event of this rank, at CLOCK_MONOTONIC `at_ns` if it happened before now."""
        try:
            self._recorder.write(event, at_ns)
        except OSError as error:
            if not self._lost:
                LOG.warning("harness: rank %d cannot write its log: %s", self._rank, error)
            self._lost = True

    def tell(self, event: Event, at_ns: int | None = None) -> None:
        """Write an event of the whole job: rank 0 speaks for it, the others are silent."""
        if self._rank == 0:
            self.write(event, at_ns)

    def show(
        self,
        mark: Mark | None = None,
        step: int | None = None,
        own_ns: int | None = None,
        wait_ns: int | None = None,
        loss: float | None = None,
    ) -> None:
        """Give a sign of life, with what has changed."""
        self.slot.update(mark, step, own_ns, wait_ns, loss)
