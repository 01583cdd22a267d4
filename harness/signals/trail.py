"""Where a step's marks are kept until it ends: on the host's clock, and on a CUDA device's.

A device runs behind the host, so only events in its stream say when it passed a place. They are
read in a later step, once the device has passed them all: nothing ever waits for it.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

from harness.signals.passage import Place, StepTime, divide

_MOST_PENDING = 64
"""Steps that a device may be behind; what is older than that is not told."""


class HostTrail:
    """The marks of the step under way, by CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A step begins."""
        self._places = [Place.START]
        self._instants_ns = [time.monotonic_ns()]
        self._asides_ns = [0]

    @property
    def place(self) -> Place:
        """The last that the step passed."""
        return self._places[-1]

    def mark(self, place: Place) -> None:
        """The step passes `place`."""
        self._places.append(place)
        self._instants_ns.append(time.monotonic_ns())
        self._asides_ns.append(0)

    def gradient(self) -> None:
        """One more gradient is ready: of several in a row the last one counts."""
        if self._places[-1] is not Place.GRADIENT:
            self.mark(Place.GRADIENT)
            return
        self._instants_ns[-1] = time.monotonic_ns()
        if self._asides_ns[-1]:
            self._asides_ns[-2] += self._asides_ns[-1]
            self._asides_ns[-1] = 0

    def set_aside(self, elapsed_ns: int) -> None:
        """Leave `elapsed_ns` out."""
        self._asides_ns[-1] += elapsed_ns

    def stop(self) -> StepTime:
        """The step is over: how its time divides."""
        self.mark(Place.END)
        return divide(self._places, self._instants_ns, self._asides_ns)


class DeviceEvent(Protocol):
    """What is used of `torch.cuda.Event`."""

    def record(self) -> None:
        """Stand in the present stream, after all that was put into it."""

    def query(self) -> bool:
        """Whether the device has passed it."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds from this event to `end_event`."""


class _Step:
    """The marks of one step."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.events: list[DeviceEvent] = []
        self.asides_ns: list[int] = []

    def divided(self) -> StepTime:
        first = self.events[0]
        instants_ns = [0, *(round(1e6 * first.elapsed_time(event)) for event in self.events[1:])]
        return divide(self.places, instants_ns, self.asides_ns)


class DeviceTrail:
    """The marks of the steps that a device has not finished yet."""

    def __init__(self, make: Callable[[], DeviceEvent]) -> None:
        self._make = make
        self._spare: list[DeviceEvent] = []
        self._pending: deque[_Step] = deque(maxlen=_MOST_PENDING)
        self._step = _Step()
        self._newest: StepTime | None = None
        self._run = 0
        """Gradients in a row so far, and …"""
        self._run_before = 0
        """… in the row before: as many will come again, so only the last is marked."""

    def start(self) -> None:
        """A step begins."""
        self._step = _Step()
        self.mark(Place.START)

    def mark(self, place: Place) -> None:
        """The step passes `place` when the device has done all that it was given."""
        if self._run:
            self._run_before, self._run = self._run, 0
        self._put(place)

    def gradient(self) -> None:
        """One more gradient is ready once the device has come to it."""
        self._run += 1
        if self._run < self._run_before:
            return
        if self._step.places[-1:] != [Place.GRADIENT]:
            self._put(Place.GRADIENT)
        else:
            self._step.events[-1].record()

    def _put(self, place: Place) -> None:
        event = self._spare.pop() if self._spare else self._make()
        event.record()
        self._step.places.append(place)
        self._step.events.append(event)
        self._step.asides_ns.append(0)

    def set_aside(self, elapsed_ns: int) -> None:
        """Leave `elapsed_ns` out."""
        if self._step.asides_ns:
            self._step.asides_ns[-1] += elapsed_ns

    def stop(self) -> StepTime | None:
        """The step is over on the host: the newest step that is so on the device, if any is."""
        self.mark(Place.END)
        self._pending.append(self._step)
        while self._pending and self._pending[0].events[-1].query():
            done = self._pending.popleft()
            self._newest = done.divided()
            self._spare += done.events
        return self._newest


def device_trail(device: torch.device) -> DeviceTrail | None:
    """The marks on `device`; None where the host does the work itself."""
    if device.type != "cuda":
        return None
    event: Any = torch.cuda.Event  # torch leaves it without types
    return DeviceTrail(lambda: event(enable_timing=True))
