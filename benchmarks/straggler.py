"""Whether the rank that is slow is named, and no other: four ranks, one of them slowed on purpose.

Run `python -m benchmarks.straggler`, five minutes. A step is mostly sleep, so that four ranks fit on
few cores. In each run one rank takes 10, 30 or 100 % longer over its own part, in half of the runs
over its batches and in half over its forward; in the clean runs none does. All runs share one group
of processes, and each begins with a fresh window. The verdict is that of the log's fold, from a
comparison after each step, where a job of such short steps has one a second.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.forked import forked
from benchmarks.machine import machine
from harness.batches import Batches
from harness.events import StepTimed
from harness.pace import Pace
from harness.signals.straggler import COMPARED, Lag
from harness.signals.tally import Stragglers

RANKS = 4
STEPS = COMPARED + 10
"""Of a run; the first is not compared."""
DATA_S, FORWARD_S = 0.01, 0.03
SLOWER = (0.1, 0.3, 1.0)


@dataclass(frozen=True, slots=True)
class Run:
    """What happens in one run."""

    slower: float = 0.0
    """By this share of its own part; 0 is a clean run."""
    rank: int = -1
    lag: Lag = Lag.COMPUTE

    def extra_s(self, rank: int, lag: Lag) -> float:
        """How much longer `rank` takes over this part."""
        return self.slower * (DATA_S + FORWARD_S) if (rank, lag) == (self.rank, self.lag) else 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the verdicts of one run came to."""

    named: tuple[int, ...]
    lags: tuple[str, ...]
    waited_s: float


def runs(times: int) -> list[Run]:
    """The same for everyone: clean runs and slowed ones in turn, so that a busy minute hits all."""
    return [
        Run(slower, number % RANKS, (Lag.COMPUTE, Lag.DATA)[number // RANKS % 2])
        if slower
        else Run()
        for number in range(times)
        for slower in (0.0, *SLOWER)
    ]


# ── a rank ──────────────────────────────────────────────────────────────────────────────────────


class Sleeper(nn.Module):
    """A model whose forward takes its time without a processor."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(64, 64)
        self.sleep_s = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Sleep, and one layer."""
        time.sleep(self.sleep_s)
        out: Tensor = self.line(x)
        return out


class Loader:
    """Batches that take their time."""

    def __init__(self) -> None:
        self.sleep_s = 0.0

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            time.sleep(self.sleep_s)
            yield torch.ones(8, 64)


def work(rank: int, store: Path, asked: Sequence[Run], kept: list[object]) -> list[tuple[Any, ...]]:
    """Take all runs; rank 0 gives what the verdicts came to."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(store), RANKS),
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=120),
    )
    model, loader, pace = Sleeper(), Loader(), Pace()
    batches = Batches(loader, pace.enter)
    ddp = DistributedDataParallel(model)
    kept.append(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-4)
    pace.watch(ddp)
    pace.watch_optimizer(optimizer)
    outcomes = []
    for number, run in enumerate(asked):
        loader.sleep_s = DATA_S + run.extra_s(rank, Lag.DATA)
        model.sleep_s = FORWARD_S + run.extra_s(rank, Lag.COMPUTE)
        told = [taken(step, pace, batches, ddp, optimizer) for step in range(1, STEPS + 1)]
        gathered: list[list[StepTimed]] = [[] for _ in range(RANKS)]
        dist.all_gather_object(gathered, told)
        if rank == 0:
            outcomes.append(judged(gathered))
            if (number + 1) % (1 + len(SLOWER)) == 0:
                print(f"  {number + 1} of {len(asked)} runs", file=sys.stderr, flush=True)
    dist.destroy_process_group()
    return [(one.named, one.lags, one.waited_s) for one in outcomes]


def taken(
    step: int,
    pace: Pace,
    batches: Batches[Tensor],
    ddp: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
) -> StepTimed:
    pace.start()
    ddp(next(batches)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    passed = pace.stop()
    return StepTimed(step, passed.own_ns, passed.wait_ns, passed.data_ns, passed.compute_ns)


def judged(told: Sequence[Sequence[StepTimed]]) -> Outcome:
    """What the log's fold makes of what the ranks told."""
    tally = Stragglers()
    tally.resume(RANKS, 0)
    for events in zip(*told, strict=True):
        for rank, event in enumerate(events):
            tally.time(rank, event, event.step, keep=256)
    named = {episode.rank: episode.lag.value for episode in tally.episodes}
    return Outcome(tuple(named), tuple(named.values()), tally.waited_ns / 1e9)


# ── all of them ─────────────────────────────────────────────────────────────────────────────────


def counted(slower: float, asked: Sequence[Run], outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Runs of one kind by what came of them; of a clean one any name is wrong."""
    pairs = [pair for pair in zip(asked, outcomes, strict=True) if pair[0].slower == slower]
    right = [(run, came) for run, came in pairs if came.named == (run.rank,)]
    return {
        "runs": len(pairs),
        "right": len(right),
        "right_cause": sum(came.lags == (run.lag.value,) for run, came in right),
        "wrong": sum(any(rank != run.rank for rank in came.named) for run, came in pairs),
        "silent": sum(not came.named for _, came in pairs),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20, help="runs of each kind (default: 20)")
    asked = runs(parser.parse_args().times)
    print(f"{machine(f'torch {torch.__version__}', 'gloo')}; {RANKS} ranks, steps of", end=" ")
    print(f"{1000 * (DATA_S + FORWARD_S):.0f} ms, mostly sleep; {STEPS} steps a run")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        told = forked(RANKS, place, lambda rank, kept: work(rank, place / "store", asked, kept))
    outcomes = [Outcome(tuple(named), tuple(lags), waited_s) for named, lags, waited_s in told]
    found = {slower: counted(slower, asked, outcomes) for slower in (0.0, *SLOWER)}
    print("\none rank slower by   named right   (and its cause)   named wrong   silent")
    for slower, came in found.items():
        kind = f"{slower:.0%}" if slower else "nobody"
        print(
            f"{kind:>17}   {came['right']:11}   {came['right_cause']:15}"
            f"   {came['wrong']:11}   {came['silent']:6}"
        )
    wrong = sum(came["wrong"] for came in found.values())
    clean = found.pop(0.0)
    print(
        json.dumps(
            {
                "benchmark": "straggler",
                "unit": "runs",
                "ours": {f"{slower:g}": came for slower, came in found.items()},
                "other": {"clean": clean},
                "ratio": {
                    "clean wrong / runs": clean["wrong"] / clean["runs"],
                    **{
                        f"{slower:g} right / runs": came["right"] / came["runs"]
                        for slower, came in found.items()
                    },
                },
                "wrong": wrong,
                "took_s": round(time.monotonic() - began),
                "machine": machine(f"torch {torch.__version__}", "gloo"),
            }
        )
    )
    return 0 if wrong == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
