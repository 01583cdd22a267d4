import torch
from torch import nn

from harness.pace import Pace


def test_own_time_ends_at_the_last_gradient():
    model, pace = nn.Linear(3, 2), Pace()
    pace.watch(model)
    pace.start()
    model(torch.ones(1, 3)).sum().backward()
    ready = pace._gradient_ns
    passed = pace.stop()
    assert passed.own_ns == ready - pace._started_ns > 0
    assert passed.wait_ns > 0


def test_without_gradients_all_of_a_step_is_its_own():
    pace = Pace()
    pace.watch(nn.Linear(3, 2))
    pace.start()
    assert pace.stop().wait_ns == 0


def test_an_evaluation_inside_a_step_is_not_waiting():
    model, pace = nn.Linear(3, 2), Pace()
    pace.watch(model)
    pace.start()
    model(torch.ones(1, 3)).sum().backward()
    pace.set_aside(3_600_000_000_000)
    assert pace.stop().wait_ns == 0


def test_an_evaluation_before_the_last_gradient_is_no_own_time():
    model, pace = nn.Linear(3, 2), Pace()
    pace.watch(model)
    pace.start()
    pace.set_aside(3_600_000_000_000)
    model(torch.ones(1, 3)).sum().backward()
    assert pace.stop().own_ns == 0

    pace.start()
    pace.set_aside(3_600_000_000_000)
    assert pace.stop().own_ns == 0


def test_watching_changes_no_gradient():
    torch.manual_seed(0)
    model, batch = nn.Linear(3, 2), torch.randn(5, 3)
    model(batch).square().sum().backward()
    assert model.weight.grad is not None
    plain = model.weight.grad.clone()
    model.zero_grad()
    Pace().watch(model)
    model(batch).square().sum().backward()
    assert torch.equal(model.weight.grad, plain)
