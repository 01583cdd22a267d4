import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from harness import exactness
from harness.digest import digest
from harness.events import ArithmeticKnown
from harness.rundir import RunDir
from harness.signals import flops, measured
from harness.signals.throughput import Arithmetic, by_formula


class Net(nn.Module):
    """A forward that draws, and changes a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 24, bias=False)
        self.norm = nn.BatchNorm1d(24)
        self.dropout = nn.Dropout(0.5)
        self.last = nn.Linear(24, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.dropout(self.norm(self.first(x))))
        return out


def test_two_layers_are_counted_as_by_hand():
    net = nn.Sequential(nn.Linear(16, 24, bias=False), nn.Linear(24, 8, bias=False))
    batch = torch.ones(5, 16)
    forward = 2 * 5 * (16 * 24 + 24 * 8)
    # Backward: both layers for their weights, the second one for its input too.
    backward = forward + 2 * 5 * 24 * 8
    assert flops.count(lambda: net(batch).sum(), [net]) == forward + backward
    assert by_formula([net, net[0]]) == 6 * (16 * 24 + 24 * 8)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_is_counted_with_and_without_dropout(dropout: float):
    net = nn.Linear(8, 8, bias=False)
    batch = torch.ones(2, 3, 10, 8)  # batch, heads, length, width

    def forward() -> Tensor:
        of = net(batch)
        return scaled_dot_product_attention(of, of, of, dropout_p=dropout).sum()

    linear = 2 * 2 * (2 * 3 * 10) * 8 * 8  # forward, and backward for the weights
    attention = 2 * 2 * (2 * 3) * 10 * 10 * 8
    # What is fused computes the scores again in backward.
    backward = attention * 5 // 2 if dropout == 0.0 else attention * 2
    assert flops.count(forward, [net]) == linear + attention + backward


def test_counting_changes_no_parameter_gradient_buffer_or_stream_and_runs_no_hook():
    exactness.seed_all(0, 0)
    net = Net()
    fired: list[int] = []
    net.last.weight.register_post_accumulate_grad_hook(lambda _: fired.append(1))  # type: ignore[no-untyped-call]
    net(torch.randn(4, 16)).sum().backward()
    fired.clear()

    def state() -> tuple[str, str, str]:
        gradients = {name: parameter.grad for name, parameter in net.named_parameters()}
        return digest(net.state_dict()), digest(gradients), exactness.rng_digest()

    before = state()
    assert flops.count(lambda: net(torch.randn(4, 16)).square().sum(), [net]) > 0
    assert (state(), fired) == (before, [])

    def failing() -> Tensor:
        net(torch.randn(4, 16))
        raise MemoryError("no room")

    with pytest.raises(MemoryError):
        flops.count(failing, [net])
    assert state() == before


def test_a_device_that_no_table_knows_is_measured_where_flops_are_counted(tmp_path: Path):
    run_dir = RunDir.at(tmp_path)
    net = nn.Linear(16, 24, bias=False)
    arithmetic = Arithmetic(torch.device("cpu"))
    assert arithmetic.known() is None
    arithmetic.watch(net)
    assert arithmetic.known() is None
    arithmetic.count(lambda: net(torch.ones(5, 16)).sum(), 5, run_dir)
    known = arithmetic.known()
    assert known is not None
    assert known.peak_flops is not None
    assert known.peak_flops > 1e8
    assert known == ArithmeticKnown(
        6.0 * 16 * 24,
        4.0 * 16 * 24,
        known.peak_flops,
        "a matrix product, measured",
        "float32",
    )
    with pytest.raises(ValueError, match="tokens = 0"):
        arithmetic.count(lambda: net(torch.ones(5, 16)).sum(), 0, run_dir)


def counted(run_dir: RunDir, net: nn.Module) -> ArithmeticKnown:
    """What an attempt of a run knows."""
    arithmetic = Arithmetic(torch.device("cpu"))
    arithmetic.watch(net)
    batch = torch.ones(5, 16, dtype=next(net.parameters()).dtype)
    arithmetic.count(lambda: net(batch).sum(), 5, run_dir)
    known = arithmetic.known()
    assert known is not None
    return known


def test_all_attempts_of_a_run_have_the_peak_that_was_measured_first(tmp_path: Path):
    run_dir, single = RunDir.at(tmp_path), nn.Linear(16, 24)
    first = counted(run_dir, single)
    assert counted(run_dir, single) == first
    double = counted(run_dir, nn.Linear(16, 24).double())
    assert double.dtype == "float64"
    assert double.peak_flops not in (None, first.peak_flops)
    assert counted(run_dir, single) == first  # the other figure stands beside it
    assert json.loads(run_dir.peaks.read_text())["schema"] == 1


@pytest.mark.parametrize(
    "left", ["", "[]", '{"peaks": 3}', '{"peaks": {"cpu": NaN}}', '{"peaks": {"cpu": "fast"}}']
)
def test_a_file_of_peaks_that_makes_no_sense_is_measured_anew(tmp_path: Path, left: str):
    run_dir = RunDir.at(tmp_path)
    run_dir.peaks.write_text(left)
    assert measured.reached(run_dir, torch.device("cpu"), torch.float32, "float32")
    assert len(json.loads(run_dir.peaks.read_text())["peaks"]) == 1


def test_a_peak_that_cannot_be_kept_or_measured_ends_nothing(tmp_path: Path):
    cpu = torch.device("cpu")
    nowhere = RunDir.at(tmp_path / "is not there")
    assert measured.reached(nowhere, cpu, torch.float32, "float32")
    assert measured.reached(RunDir.at(tmp_path), cpu, torch.float8_e5m2, "float8_e5m2") is None


def test_the_dtype_is_that_of_the_first_forward_and_the_hook_that_saw_it_is_gone():
    net = nn.Linear(16, 24, bias=False)
    arithmetic = Arithmetic(torch.device("cpu"))
    arithmetic.watch(net)
    with torch.autocast("cpu", torch.bfloat16):
        net(torch.ones(5, 16))
    net(torch.ones(5, 16))
    assert arithmetic._kind() == "bfloat16"
    assert not net._forward_pre_hooks
