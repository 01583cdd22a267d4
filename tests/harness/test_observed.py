import numpy as np
import pytest
import torch

from harness.observed import Evaluation, Observation, Observed


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


def test_a_loss_that_the_script_changes_afterwards_is_told_as_it_was():
    observed, loss = Observed(late=False), torch.tensor(2.0)
    observed.add(loss, 1)
    loss.mul_(8)  # as a sum over the ranks, made in place
    assert observed.take(1).loss == 2.0


def test_a_loss_of_many_numbers_is_refused_by_its_shape():
    with pytest.raises(ValueError, match=r"a loss is one number; this one has shape \(2,\)"):
        Observed(late=False).add(torch.zeros(2), 1)


def test_a_number_of_python_s_is_kept_as_it_is_in_whatever_dtype_models_are():
    observed = Observed(late=False)
    observed.add(1e300, 0)  # infinite in single precision
    observed.add(1.1e300, 0)
    assert observed.take(1) == Observation(0, 1.05e300, 1)


@pytest.mark.parametrize("tokens", [7, np.int64(7), torch.tensor(7), torch.tensor([7])])
def test_tokens_may_be_counted_by_a_tensor_or_an_array(tokens):
    observed = Observed(late=False)
    observed.add(None, tokens)
    taken = observed.take(1)
    assert (taken.tokens, type(taken.tokens)) == (7, int)


def test_fewer_tokens_than_none_are_refused():
    with pytest.raises(ValueError, match="tokens = -1: it is how many a micro-batch has"):
        Observed(late=False).add(None, -1)


@pytest.mark.parametrize("loss", [1.5, np.float32(1.5), torch.tensor(1.5), torch.tensor([1.5])])
def test_a_score_may_be_a_tensor_or_an_array_of_one_number(loss):
    evaluation = Evaluation(3)
    assert evaluation.loss is None
    evaluation.loss = loss
    assert (evaluation.loss, type(evaluation.loss)) == (1.5, float)


def test_a_score_that_is_no_number_is_refused_where_it_is_set():
    evaluation = Evaluation(3)
    with pytest.raises(ValueError, match=r"one number; this is a Tensor of shape \(2,\): give"):
        evaluation.loss = torch.zeros(2)
    with pytest.raises(ValueError, match="one number; this is a dict: give its mean"):
        evaluation.loss = {}  # type: ignore[assignment]
