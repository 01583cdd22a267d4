"""The job of `harness gpu-acceptance`; the script that its ranks run. A residual net on drawn numbers."""

import argparse
import gc
import os
import time

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import harness

EXAMPLES = 4096
WARM_UP = 10
"""Steps that are not timed."""


class Numbers(Dataset[Tensor]):
    """Inputs that follow from their index."""

    def __init__(self, width: int) -> None:
        self._width = width

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> Tensor:
        """One example, (width,) float32."""
        return torch.randn(self._width, generator=torch.Generator().manual_seed(index))


class Block(nn.Module):
    """Adds to its input; dropout, so that random streams matter, and a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, width) → (batch, width)."""
        inner = functional.gelu(self.up(self.norm(x)))
        result: Tensor = x + functional.dropout(self.down(inner), 0.1, self.training)
        return result


def arguments() -> argparse.Namespace:
    """The job's size, whether it goes without the harness, and what ends a step."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--width", "--layers", "--batch", "--steps"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--bare", action="store_true", help="the same loop without the harness")
    settle = "the device finishes each step before it counts as done"
    parser.add_argument("--settle", action="store_true", help=settle)
    return parser.parse_args()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """The same on both sides."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor) -> Tensor:
    """Forward, backward, update; the loss."""
    loss = functional.mse_loss(model(inputs), inputs.roll(1, dims=-1))
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


def protected(asked: argparse.Namespace) -> None:
    """The loop as the README has it."""
    job = harness.join(seed=1)
    numbers = Numbers(asked.width)
    sampler = harness.ResumableSampler(len(numbers), asked.batch * job.world_size, seed=job.seed)
    batches = job.batches(DataLoader(numbers, batch_sampler=sampler))
    model = job.ddp(
        nn.Sequential(*(Block(asked.width) for _ in range(asked.layers))).to(job.device)
    )
    optimizer = optimizer_of(model)
    job.protect(model=model, optimizer=optimizer, data=sampler)
    clock = Clock(job.device, asked.steps)
    for number in job.steps(asked.steps):
        job.observe(loss=step(model, optimizer, next(batches).to(job.device)))
        clock.tick(number)
        if asked.settle:
            settle(job.device)
    clock.tell(job.rank)


def bare(asked: argparse.Namespace) -> None:
    """The same arithmetic by plain torch."""
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(1)
    loader = DataLoader(Numbers(asked.width), batch_size=asked.batch)
    model = DistributedDataParallel(
        nn.Sequential(*(Block(asked.width) for _ in range(asked.layers))).to(device)
    )
    optimizer = optimizer_of(model)
    clock, batches = Clock(device, asked.steps), iter(loader)
    for number in range(1, asked.steps + 1):
        inputs = next(batches, None)
        if inputs is None:
            batches = iter(loader)
            inputs = next(batches)
        step(model, optimizer, inputs.to(device))
        clock.tick(number)
    clock.tell(rank)
    # torch may wait for ever in a DDP that is freed after its group is gone.
    del model, optimizer
    gc.collect()
    dist.destroy_process_group()


def settle(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Clock:
    """Times the steps after the first few up to the last, with what the device still has to do.

    The last state is saved after the last step, by one side alone: that is no part of a step.
    """

    def __init__(self, device: torch.device, last: int) -> None:
        self._device = device
        self._last = last
        self._began_ns: int | None = None
        self._ended_ns: int | None = None

    def tick(self, number: int) -> None:
        """Step `number` is done."""
        if number == WARM_UP:
            self._began_ns = self._now_ns()
        elif number == self._last:
            self._ended_ns = self._now_ns()

    def tell(self, rank: int) -> None:
        """Print milliseconds a step and the end of the last, if this attempt did all that is timed."""
        if rank == 0 and self._began_ns is not None and self._ended_ns is not None:
            step_ms = (self._ended_ns - self._began_ns) / (self._last - WARM_UP) / 1e6
            print(f"step_ms {step_ms:.4f} ended_ns {self._ended_ns}", flush=True)  # noqa: T201

    def _now_ns(self) -> int:
        settle(self._device)
        return time.monotonic_ns()


def main() -> None:
    """Be a rank."""
    asked = arguments()
    (bare if asked.bare else protected)(asked)


if __name__ == "__main__":
    main()
