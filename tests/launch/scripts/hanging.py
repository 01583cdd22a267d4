"""Trains a little, and one rank of the first attempt hangs.

HANG  `rank:where:how`. Where: `join`, `restore`, `group`, `setup`, `loader`, `forward`, `optimizer`,
      `collective` (it does not enter one of the script's own) or `skip` (it leaves that out and goes on).
      How: `stop`, `spin` or `gil` (a call into C that holds it).
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.data import DataLoader, Dataset

import harness
from harness import points
from harness.points import Point

RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["HARNESS_ATTEMPT"])
CULPRIT, WHERE, HOW = os.environ["HANG"].split(":")
STEPS, AT_STEP = 24, 12


def spin() -> None:
    """Be busy, in Python."""
    while True:
        pass


def stop() -> None:
    """Be stopped."""
    os.kill(os.getpid(), signal.SIGSTOP)


def hold_the_gil() -> None:
    """Let no other thread of this process run Python."""
    ctypes.PyDLL(None).sleep(1_000_000)


HANGS: dict[str, Callable[[], None]] = {"stop": stop, "spin": spin, "gil": hold_the_gil}


def here(where: str) -> bool:
    """True where this rank is to hang."""
    return (ATTEMPT, RANK, where) == (1, int(CULPRIT), WHERE)


def hang(where: str) -> None:
    """Hang if this is where."""
    if here(where):
        HANGS[HOW]()


class Ones(Dataset[Tensor]):
    """Slow to give the batch of one step."""

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> Tensor:
        if index == AT_STEP - 1:
            hang("loader")
        return torch.ones(2)


class Model(nn.Linear):
    """Slow in the forward pass of one step."""

    steps = 0

    def forward(self, batch: Tensor) -> Tensor:
        """See `Model`."""
        if self.training and torch.is_grad_enabled():
            self.steps += 1
        if self.steps == AT_STEP:
            hang("forward")
        return super().forward(batch)


for name in ("join", "restore", "group"):
    if here(name):
        points.arm(Point(name), HANGS[HOW])
job = harness.join(save_every_steps=5)
hang("setup")
own_group = dist.new_group()
model = job.ddp(Model(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.protect(model=model, optimizer=optimizer)
batches = job.batches(DataLoader(Ones(), batch_size=1))
step = 0
optimizer.register_step_pre_hook(lambda *_: hang("optimizer") if step == AT_STEP else None)
for step in job.steps(STEPS):
    if step == AT_STEP:
        hang("collective")
    if not (step == AT_STEP and here("skip")):
        dist.all_reduce(torch.ones(1), group=own_group)
    loss = model(next(batches)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    job.observe(loss=loss)
    time.sleep(0.02)
sys.exit(0)
