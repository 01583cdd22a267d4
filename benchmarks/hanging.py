"""The job of `benchmarks.noticing`; the script that its ranks run.

Attempt by attempt rank 1 hangs in another way, as `HANGS` asks; or for `SECONDS` much is slow, and nothing hangs.
"""

import ctypes
import math
import os
import signal
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.data import DataLoader, Dataset

import harness
from harness import points
from harness.points import Point

KINDS = (
    *("loader", "collective", "stopped", "group", "spinning", "restore"),
    *("holding the GIL", "set-up"),
)
EARLY = {"group": Point.GROUP, "restore": Point.RESTORE}
STEP_S = 0.5
"""CPU time of a rank's own part of a step, in the run without a hang."""


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def spin() -> None:
    while True:
        pass


def hold_the_gil() -> None:
    ctypes.PyDLL(None).sleep(1_000_000)


ACTS: dict[str, Callable[[], None]] = {"stopped": stop, "holding the GIL": hold_the_gil}


class Hanging:
    """What the one rank that hangs does in this attempt."""

    def __init__(self) -> None:
        self.attempt, hangs = int(os.environ["HARNESS_ATTEMPT"]), int(os.environ.get("HANGS", "0"))
        is_culprit = os.environ["RANK"] == "1" and self.attempt <= hangs
        self.kind = KINDS[(self.attempt - 1) % len(KINDS)] if is_culprit else ""
        self.at_step = 20 * self.attempt
        if self.kind in EARLY:
            points.arm(EARLY[self.kind], self.hang)

    def hang(self) -> None:
        """Say so, and do."""
        print(f"hang {self.kind} at {time.time_ns()}", flush=True)
        ACTS.get(self.kind, spin)()

    def at(self, step: int, *kinds: str) -> None:
        """Hang if that is due here."""
        if step == self.at_step and self.kind in kinds:
            self.hang()


class Ones(Dataset[Tensor]):
    """A data set whose loader may hang."""

    def __init__(self, hanging: Hanging) -> None:
        self.hanging = hanging
        self.step = 0

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Tensor:
        self.hanging.at(self.step, "loader")
        return torch.ones(64)


def work(seconds: float) -> None:
    """Be busy for so much CPU time."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        torch.ones(64) @ torch.ones(64)


def train() -> None:
    """The loop, and what is slow or stuck in it."""
    seconds = float(os.environ.get("SECONDS", "0"))
    own_s = STEP_S if seconds else 0.01
    hanging = Hanging()
    until = math.inf
    if seconds:
        points.arm(Point.SAVE_COPY, lambda: time.sleep(10 * STEP_S))
    job = harness.join()
    if hanging.kind == "set-up":
        hanging.hang()
    ones = Ones(hanging)
    model = job.ddp(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    job.protect(model=model, optimizer=optimizer)
    batches = job.batches(DataLoader(ones, batch_size=8))
    total = 10**6 if seconds else 20 * int(os.environ["HANGS"]) + 30
    for step in job.steps(total):
        ones.step = step
        hanging.at(step, "collective")
        ended = torch.tensor(float(seconds and time.monotonic() > until))
        dist.all_reduce(ended)
        batch = next(batches)
        hanging.at(step, "stopped", "spinning", "holding the GIL")
        work(own_s * (30 if seconds and step == 1 else 1))
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        job.observe(loss=loss)
        until = time.monotonic() + seconds if until == math.inf else until
        if seconds and step % 20 == 10:
            with job.evaluating():
                time.sleep(10 * STEP_S)
        if ended > 0:
            job.stop()


if __name__ == "__main__":
    train()
