from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from harness.signals.travel import arrived, departing


class Pair(NamedTuple):
    inputs: torch.Tensor
    name: str


@dataclass(frozen=True)
class Sample:
    pair: Pair
    rest: dict[str, list[int]]


def test_containers_of_every_kind_arrive_as_they_were():
    sent = Sample(Pair(torch.arange(3), "x"), {"lengths": [1, 2]})
    came = arrived(departing([sent, None]), torch.device("cpu"))
    assert isinstance(came, list)
    assert type(came[0].pair) is Pair
    assert torch.equal(came[0].pair.inputs, sent.pair.inputs)
    assert (came[0].pair.name, came[0].rest, came[1]) == ("x", {"lengths": [1, 2]}, None)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_was_on_an_accelerator_is_on_one_again():
    away = departing({"on": torch.ones(2, device="cuda"), "host": torch.ones(2)})
    came = arrived(away, torch.device("cuda"))
    assert [came[name].device.type for name in ("on", "host")] == ["cuda", "cpu"]
