"""How a rank speaks: events into its log, signs of life into its slot.

Losing its voice, or never finding it, kills no rank. A full disk takes the log and must not take the
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
        self._lost = False
        self._recorder: Recorder | None = None
        try:
            self._recorder = Recorder(run_dir, run_id, f"rank-{rank}", attempt)
        except OSError as error:
            self._lose(error)

    @property
    def event_file(self) -> str:
        """The file that this rank holds open and locked; empty if it has none."""
        return "" if self._recorder is None else str(self._recorder.path)

    @property
    def leads(self) -> bool:
        """True for rank 0, which speaks for the whole job."""
        return self._rank == 0

    def write(self, event: Event, at_ns: int | None = None) -> None:
        """Write an event of this rank, at CLOCK_MONOTONIC `at_ns` if it happened before now."""
        if self._recorder is None:
            return
        try:
            self._recorder.write(event, at_ns)
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
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
