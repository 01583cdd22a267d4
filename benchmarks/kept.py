"""The job of `benchmarks.goodput`, kept alive in three ways; the script that its ranks run.

Model, data, optimizer and step log are the same for all. What differs is who saves, and who restores.
"""

import argparse
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

import harness
from harness.beginning import start_ticks

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

from gpt import GPT, PRESETS
from text import Windows, load

EVER = 1_000_000_000
CALIBRATION = (5, 10, 15)
"""Steps at which the plain sides save before they know what a save costs; the last one counts."""
KEPT = 2
"""How many checkpoints the plain sides leave."""


class StepLog:
    """What rank 0 says of each step: when its work began and ended."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._pid = os.getpid()
        self._file = (folder / "steps.jsonl").open("ab", buffering=0) if rank == 0 else None
        member = {"pid": self._pid, "ticks": start_ticks(self._pid)}
        (folder / f"rank-{rank}.json").write_text(json.dumps(member))

    @contextmanager
    def working(self, step: int) -> Iterator[None]:
        """The body of a step: no save, no restore, no waiting for either."""
        began_s = time.monotonic()
        yield
        if self._file is not None:  # by hand, for what it takes counts as time between steps
            line = b'{"step": %d, "began_s": %.6f, "ended_s": %.6f, "pid": %d}\n'
            self._file.write(line % (step, began_s, time.monotonic(), self._pid))


class Training:
    """One step after the other; which windows a step takes follows from its number."""

    def __init__(self, preset: str, batch: int, rank: int, world_size: int) -> None:
        """`batch` is how many windows a step takes, over all ranks."""
        torch.manual_seed(1)
        self._sizes = PRESETS[preset]
        self._batch = batch
        self._windows: Windows = load(None, self._sizes.context)[0]
        self._rank, self._world_size = rank, world_size
        self.bare = GPT(self._sizes)
        self.model: nn.Module = self.bare

    def use(self, model: nn.Module) -> None:
        """Train `bare` through this wrapper."""
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(self, number: int) -> Tensor:
        """Forward, backward, update."""
        share = self._batch // self._world_size
        first = (number * self._batch + self._rank * share) % len(self._windows)
        items = [self._windows[(first + i) % len(self._windows)] for i in range(share)]
        loss: Tensor = self.model(
            torch.stack([a for a, _ in items]), torch.stack([b for _, b in items])
        )
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss


# ── ours ────────────────────────────────────────────────────────────────────────────────────────


def ours(folder: Path, preset: str, batch: int) -> None:
    """With the harness, under `harness run`."""
    job = harness.join(seed=1)
    log = StepLog(folder, job.rank)
    training = Training(preset, batch, job.rank, job.world_size)
    training.use(job.ddp(training.bare))
    job.protect(model=training.model, optimizer=training.optimizer)
    for step in job.steps(EVER):
        with log.working(step):
            loss = training.step(step)
        job.observe(loss=loss)


# ── theirs ──────────────────────────────────────────────────────────────────────────────────────


class Keeper(Protocol):
    """How the state is kept."""

    def restore(self) -> int:
        """Load the newest state; the number of steps that it has finished, 0 for none."""

    def save(self, step: int) -> None:
        """Save, or begin to; training goes on when this returns."""


class TorchSave:
    """`torch.save` on rank 0, put in place when it is whole."""

    def __init__(self, folder: Path, training: Training) -> None:
        self._folder, self._training = folder, training

    def restore(self) -> int:
        """See `Keeper`."""
        found = sorted(self._folder.glob("step-*.pt"))
        if not found:
            return 0
        state = torch.load(found[-1], weights_only=True, map_location="cpu")
        self._training.bare.load_state_dict(state["model"])
        self._training.optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])

    def save(self, step: int) -> None:
        """See `Keeper`."""
        if dist.get_rank() != 0:
            return
        state = {
            "step": step,
            "model": self._training.bare.state_dict(),
            "optimizer": self._training.optimizer.state_dict(),
        }
        path = self._folder / f"step-{step:09}.pt"
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)
        for old in sorted(self._folder.glob("step-*.pt"))[:-KEPT]:
            old.unlink()


class AsyncSave:
    """DCP's `async_save`, with a group of its own; the one before is waited for."""

    def __init__(self, folder: Path, training: Training) -> None:
        self._folder, self._training = folder, training
        self._group = dist.new_group(backend="gloo")
        self._pending: Any = None

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._training.bare, self._training.optimizer)
        return {"model": model, "optimizer": optimizer}

    def _whole(self) -> list[Path]:
        """DCP writes its metadata last."""
        return sorted(path.parent for path in self._folder.glob("step-*/.metadata"))

    def restore(self) -> int:
        """See `Keeper`."""
        whole = self._whole()
        if not whole:
            return 0
        state = self._state()
        dcp.load(state, checkpoint_id=whole[-1])
        set_state_dict(
            self._training.bare,
            self._training.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        return int(whole[-1].name.removeprefix("step-"))

    def save(self, step: int) -> None:
        """See `Keeper`."""
        if self._pending is not None:
            self._pending.result()
        if dist.get_rank() == 0:
            for old in self._whole()[:-KEPT]:
                shutil.rmtree(old)
        place = self._folder / f"step-{step:09}"
        self._pending = dcp.async_save(
            self._state(), checkpoint_id=place, process_group=self._group
        )


def plain(keeper_type: type[TorchSave] | type[AsyncSave], folder: Path, asked: Any) -> None:
    """As people write it, under torchrun; saves at Young's interval for what a save costs here."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    log = StepLog(folder, rank)
    training = Training(asked.preset, asked.batch, rank, dist.get_world_size())
    training.use(DistributedDataParallel(training.bare))
    keeper: Keeper = keeper_type(folder, training)
    done = keeper.restore()
    every = _agreed(_known_interval(folder) if rank == 0 else 0)
    began_s = time.monotonic()
    for step in range(done + 1, EVER):
        with log.working(step):
            training.step(step)
        if step - done in CALIBRATION if every == 0 else step % every == 0:
            before_s = time.monotonic()
            keeper.save(step)
            stall_s = time.monotonic() - before_s
            if every == 0 and step - done == CALIBRATION[-1]:
                step_s = (before_s - began_s) / (step - done)
                every = _agreed(_young_steps(stall_s, asked.mtbf, step_s) if rank == 0 else 0)
                if rank == 0:
                    (folder / "interval").write_text(str(every))


def _young_steps(stall_s: float, mtbf_s: float, step_s: float) -> int:
    return max(1, round(math.sqrt(2 * stall_s * mtbf_s) / step_s))


def _known_interval(folder: Path) -> int:
    path = folder / "interval"
    return int(path.read_text()) if path.exists() else 0


def _agreed(mine: int) -> int:
    """What rank 0 says."""
    said = torch.tensor(mine)
    dist.broadcast(said, src=0)
    return int(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=("ours", "torch-save", "async-save"), required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--preset", choices=PRESETS, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--mtbf", type=float, required=True)
    asked = parser.parse_args()
    if asked.side == "ours":
        ours(asked.folder, asked.preset, asked.batch)
    else:
        keeper = TorchSave if asked.side == "torch-save" else AsyncSave
        plain(keeper, asked.folder, asked)


if __name__ == "__main__":
    main()
