"""Shows how a run goes while it goes: one line that moves on a terminal, plain lines elsewhere.

It reads the run directory alone, a second behind the log. What the launcher does itself (attempts,
failures, drain, the end) the launcher says at once; here stands what only the log knows.
"""

import contextlib
import errno
import math
import sys
import time
from collections.abc import Callable
from typing import IO, Self

from rich.console import Console
from rich.live import Live as Moving

from harness import slots
from harness.cache import Following
from harness.rundir import RunDir
from launch import served
from launch.news import news, seen
from launch.status import Pace, Status, status

LOOK_S = 0.2
"""At least this long between two looks at the log."""
PLAIN_S = 10.0
"""Between two status lines where there is no terminal."""


class Live:
    """The view of a run; `poll` as often as you like, it looks when it is time.

    Nothing that goes wrong in here reaches the caller: training goes on without being watched.
    """

    def __init__(
        self,
        run_dir: RunDir,
        out: IO[str] | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dir, self._clock_s = run_dir, clock_s
        self._console = _Console(file=sys.stderr if out is None else out, highlight=False)
        self._pace = Pace()
        self._looked_s = self._said_s = -math.inf
        self._said: Status | None = None
        self._broken = False
        self._moving: Moving | None = None

    def __enter__(self) -> Self:
        self._guarded(self._open)
        return self

    def poll(self) -> None:
        """Show the present, if the last look was not just now."""
        if self._clock_s() - self._looked_s >= LOOK_S:
            self._guarded(self._look)

    def __exit__(self, *exception: object) -> None:
        self._guarded(self._look_to_the_end)
        self._guarded(self._close)

    def _open(self) -> None:
        self._following = Following(self._run_dir)
        self._following.poll()
        self._seen = seen(self._following.fold)
        self._left = served.place(self._run_dir)  # by an exporter that was killed
        self._page = ""
        self._said_s = self._clock_s()
        if self._console.is_terminal:
            self._moving = Moving(console=self._console, auto_refresh=False, transient=True)
            self._moving.start()
            self._console.show_cursor(True)  # a launcher that is killed leaves a usable terminal

    def _look(self) -> None:
        self._looked_s = self._clock_s()
        self._following.poll()
        self._say_where_it_is_served()
        self._show()

    def _say_where_it_is_served(self) -> None:
        found = served.place(self._run_dir)
        if found is None or found == self._left or found.page == self._page:
            return
        self._page = page = found.page
        line = f"metrics at {page}metrics, a page at {page}"
        self._console.print(line, markup=False, soft_wrap=True)

    def _look_to_the_end(self) -> None:
        """What the log says in its last second too."""
        self._following.poll_ahead()
        self._said_s = -math.inf
        self._show()

    def _show(self) -> None:
        fold = self._following.fold
        for line in news(self._seen, fold):
            self._console.print(line, markup=False, soft_wrap=True)
        self._seen = seen(fold)
        self._pace.observe(fold)
        now = status(fold, slots.read(self._run_dir.slot(0)), self._pace)
        if self._moving is not None:
            self._moving.update(now.line(), refresh=True)
        elif self._clock_s() - self._said_s >= PLAIN_S and now != self._said:
            self._said_s, self._said = self._clock_s(), now
            self._console.print(now.line().plain, markup=False, soft_wrap=True)

    def _close(self) -> None:
        """No cache is written: what was read ahead of the horizon is for these eyes only."""
        if self._moving is not None:
            self._moving.stop()

    def _guarded(self, act: Callable[[], None]) -> None:
        if self._broken:
            return
        try:
            act()
        except Exception as error:  # noqa: BLE001 - a view that fails is no reason to stop training
            self._broken = True
            with contextlib.suppress(Exception):
                self._close()
                self._console.print(f"no live view any more: {error!r}", markup=False)


class _Console(Console):
    """rich would end the process when the reader of a pipe leaves; this one is a launcher."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "whoever read the live view has left")
