import pytest
import torch

from harness.observed import Observation, Observed


def test_the_loss_of_a_step_is_the_mean_of_its_micro_batches():
    observed = Observed(late=False)
    observed.add(torch.tensor(2.0), 10)
    observed.add(torch.tensor(4.0), 10)
    assert observed.take(7) == Observation(tokens=20, loss=3.0, loss_step=7)
    observed.add(1.5, 5)
    assert observed.take(8) == Observation(tokens=5, loss=1.5, loss_step=8)


def test_on_an_accelerator_the_loss_is_read_one_step_late():
    observed = Observed(late=True)
    observed.add(torch.tensor(2.0), 10)
    assert observed.take(1) == Observation(10, None, None)
    observed.add(torch.tensor(4.0), 10)
    assert observed.take(2) == Observation(10, 2.0, 1)
    assert observed.take(3) == Observation(0, 4.0, 2)


def test_a_step_without_a_loss_has_none():
    observed = Observed(late=False)
    observed.add(None, 3)
    assert observed.take(1) == Observation(3, None, None)


def test_the_graph_is_let_go():
    observed = Observed(late=False)
    weight = torch.ones(2, requires_grad=True)
    observed.add((weight * 2).sum(), 1)
    mean = observed.mean()
    assert mean is not None
    assert not mean.requires_grad


def test_a_loss_of_many_numbers_is_refused_by_its_shape():
    with pytest.raises(ValueError, match=r"a loss is one number; this one has shape \(2,\)"):
        Observed(late=False).add(torch.zeros(2), 1)
