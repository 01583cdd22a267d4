from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from harness.pace import Pace
from harness.signals.passage import Place, StepTime
from harness.signals.trail import DeviceTrail, device_trail


@dataclass
class Device:
    """A device that does its work when it is told to."""

    given: int = 0
    """Milliseconds of work that stand in its stream."""
    passed: int = 0


@dataclass
class Event:
    device: Device
    at: int = -1

    def record(self) -> None:
        self.at = self.device.given

    def query(self) -> bool:
        return self.at <= self.device.passed

    def elapsed_time(self, end_event: "Event", /) -> float:
        assert self.query()
        assert end_event.query()
        return float(end_event.at - self.at)


MS = 1_000_000


def step(trail: DeviceTrail, device: Device, compute: int, gradients: int) -> StepTime | None:
    trail.start()
    trail.mark(Place.LOADING)
    device.given += 1
    trail.mark(Place.LOADED)
    for _ in range(gradients):
        device.given += compute
        trail.gradient()
    device.given += 50
    trail.mark(Place.UPDATING)
    device.given += 4
    trail.mark(Place.UPDATED)
    return trail.stop()


def test_a_step_of_a_device_is_told_once_the_device_has_passed_it():
    device = Device()
    trail = DeviceTrail(lambda: Event(device))
    assert step(trail, device, 10, gradients=3) is None
    assert step(trail, device, 20, gradients=3) is None
    device.passed = 85  # the end of the first
    first = StepTime(35 * MS, 50 * MS, 1 * MS, 34 * MS)
    assert step(trail, device, 20, gradients=3) == first
    device.passed = device.given
    assert step(trail, device, 1, gradients=3) == StepTime(65 * MS, 50 * MS, 1 * MS, 64 * MS)


def test_events_of_a_device_are_used_again():
    device = Device()
    made: list[Event] = []

    def make() -> Event:
        made.append(Event(device))
        return made[-1]

    trail = DeviceTrail(make)
    for _ in range(50):
        step(trail, device, 10, gradients=3)
        device.passed = device.given
    assert len(made) <= 14  # of the step under way and the one before


def test_a_step_of_more_gradients_than_the_one_before_ends_its_own_part_with_the_last():
    device = Device()
    trail = DeviceTrail(lambda: Event(device))
    step(trail, device, 10, gradients=2)
    step(trail, device, 10, gradients=5)
    device.passed = device.given
    step(trail, device, 10, gradients=1)
    assert trail._newest == StepTime(55 * MS, 50 * MS, 1 * MS, 54 * MS)


def test_a_host_that_does_the_work_itself_has_no_trail_of_a_device():
    assert device_trail(torch.device("cpu")) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_own_time_on_cuda_is_the_device_s_and_no_step_waits_for_it():
    cuda: Any = torch.cuda  # torch leaves it without types
    device = torch.device("cuda", 0)
    model = nn.Linear(64, 64, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pace = Pace(device=device)
    pace.watch(model)
    pace.watch_optimizer(optimizer)
    torch.cuda.set_sync_debug_mode("error")  # whatever waits for the device raises
    try:
        for _ in range(20):
            pace.start()
            cuda._sleep(20_000_000)
            model(torch.ones(8, 64, device=device)).sum().backward()
            optimizer.step()
            passed = pace.stop()
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        pace.start()
        passed = pace.stop()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert passed.compute_ns > 5 * MS
    assert passed.own_ns > passed.wait_ns
