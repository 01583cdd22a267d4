"""The same signals where tensors live on an accelerator."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.events import HealthObserved, NonfiniteFound
from harness.journal import read
from harness.observed import Observed
from harness.optimizer import Names
from harness.rundir import RunDir
from harness.settings import Settings
from harness.signals.hashing import hashed, summed
from harness.signals.health import Health
from harness.signals.late import Late
from harness.signals.unsound import NonfiniteError
from harness.voice import Voice

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_numbers_that_are_read_late_are_those_of_the_moment_they_were_asked_for():
    value = torch.ones(2, device="cuda")
    late = Late(value)
    value.zero_()
    assert late.read() == [1.0, 1.0]


def test_a_device_makes_the_same_number_of_the_same_bits_as_a_host():
    tensors = [torch.randn(1000), torch.randn(7).bfloat16()]
    there = [tensor.cuda() for tensor in tensors]
    assert int(hashed(there)) == int(summed(tensors))


@pytest.mark.parametrize("reaction", ["fail", "skip", "report"])
def test_training_on_a_device_is_watched_and_a_nan_is_found(tmp_path: Path, reaction: str):
    run_dir = RunDir.at(tmp_path)
    run_dir.create()
    observed = Observed(late=True)
    settings = replace(Settings(health_every_steps=1), on_nonfinite=reaction)
    health = Health(Voice(run_dir, "run", 0, 1), observed, settings, True, 1)
    model = torch.nn.Linear(3, 1).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    health.watch_optimizer(optimizer)
    names: Names = {p: f"model.{name}" for name, p in model.named_parameters()}
    health.name(names)

    def step(number: int, scale: float) -> None:
        health.begin(number)
        loss = model(torch.ones(2, 3, device="cuda")).square().mean() * scale
        loss.backward()
        observed.add(loss, 1)
        health.clip(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        health.finish(number, last=False)
        observed.take(number)

    step(1, 1.0)
    step(2, float("nan"))
    if reaction == "fail":
        with pytest.raises(NonfiniteError):
            health.settle()
    else:
        health.settle()
    told = [entry.event for entry in read(run_dir)]
    assert [it.step for it in told if isinstance(it, HealthObserved)] == [1, 2]
    assert {it.step for it in told if isinstance(it, NonfiniteFound)} == {2}
    assert bool(next(model.parameters()).isfinite().all()) == (reaction == "skip")


@pytest.mark.parametrize("loss", [None, 1.5])
def test_a_step_whose_loss_is_the_host_s_or_not_told_waits_for_no_device(tmp_path: Path, loss):
    run_dir = RunDir.at(tmp_path)
    run_dir.create()
    observed = Observed(late=True)
    health = Health(Voice(run_dir, "run", 0, 1), observed, Settings(), True, 1)
    model = torch.nn.Linear(3, 1).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
    health.watch_optimizer(optimizer)
    inputs = torch.ones(2, 3, device="cuda")
    torch.cuda.set_sync_debug_mode("error")  # whatever waits for the device raises
    try:
        health.begin(1)
        model(inputs).square().mean().backward()
        observed.add(loss, 1)
        health.clip(model.parameters(), 1.0)
        optimizer.step()
        health.finish(1, last=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
