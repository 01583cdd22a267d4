"""How a saver takes over what an earlier one of the run still holds: first the memory, then the word of it.

At no time is there nobody to ask: the later one listens before it lets the earlier one go.
"""

from contextlib import suppress

from harness.checkpoint.borrowing import lent
from harness.checkpoint.shelf import Shelf
from harness.checkpoint.tell import said, warn
from harness.checkpoint.wire import Line, Relieved

_TIMEOUT_S = 40.0
"""An earlier saver seals what it has before it lends that."""
_TRIES = 2


def take_over(shelf: Shelf, earlier: str, mine: str, run_id: str) -> Line | None:
    """Put on the shelf what the saver at `earlier` holds; the line to it, if there is one."""
    if earlier in ("", mine):
        return None
    line: Line | None = None
    for _ in range(_TRIES):  # it is let go in any case, and all that was not taken over with it
        if line is not None:
            line.close()
        try:
            line = Line.to(earlier, _TIMEOUT_S)
        except OSError:
            return None  # it has gone, and all with it
        try:
            for loan in lent(line, run_id, None):
                shelf.put(loan.rank, loan.slot, loan.descriptor, 0, busy=loan.busy)
        except (OSError, EOFError, ValueError) as error:
            warn(f"what an earlier saver holds cannot be taken over: {said(error)}")
        else:
            break
    return line


def relieve(earlier: Line | None) -> None:
    """Let the earlier saver go; what it still writes, it finishes."""
    if earlier is not None:
        with suppress(OSError):
            earlier.send(Relieved())
        earlier.close()
