"""What the signals cost: the same loop with and without them, and without them twice.

Run `python -m benchmarks.overhead [--each]`, four minutes (`--minutes`). Two ranks train the demo's
model by all loops in turn, block by block, there and back again (A B A′ A′ B A), so that a machine
that gets slower hits all alike. A ratio is the median over such rounds, with a bootstrap interval of
95 %. The plain loop beside itself says what this machine can resolve: where that is not 1 to within
1 %, or an interval lies across the target, the answer is `unresolved`. Processor time of rank 0, which
has most to do, is told beside it: others on the machine disturb it less, and it counts no waiting.

`--each` times each signal alone, and the recompute audit, which is a choice of its own. What is done
every so many steps is done once in a block here, more often than by default.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DDP's constructor imports it: once here, not once in every rank
from torch import Tensor
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from benchmarks.machine import machine
from harness import exactness
from harness.batches import Batches
from harness.components import Protected
from harness.rundir import RunDir
from harness.settings import Settings
from harness.signals.health import Health
from harness.signals.recompute import Audit
from harness.signals.replicas import Replicas
from harness.steplog import StepLog
from harness.voice import Voice

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))  # scripts that import their siblings, as a user's do
from gpt import GPT, PRESETS  # noqa: E402

RANKS = 2
BLOCK = 10
"""Steps; so many as health's default is to look closer every so many."""
BATCH = 4
"""Sequences of a rank."""
TARGET = 1.01
RESOLVED = 0.01
"""How far from 1 the plain loop beside itself may be."""


class Signal(Enum):
    """What can be added to a plain loop."""

    OWN_TIME = auto()
    """Hooks on gradients and optimizer, and batches that are counted."""
    EVENTS = auto()
    """The log of steps and the slot."""
    HEALTH = auto()
    REPLICAS = auto()
    AUDIT = auto()


PLAIN, AGAIN, ALL = "plain", "plain again", "all"
ROWS: Mapping[str, frozenset[Signal]] = {
    PLAIN: frozenset(),
    ALL: frozenset(Signal) - {Signal.AUDIT},
    "own time": frozenset({Signal.OWN_TIME}),
    "events": frozenset({Signal.EVENTS}),
    "health": frozenset({Signal.HEALTH}),
    "replicas": frozenset({Signal.REPLICAS}),
    "recompute audit": frozenset({Signal.AUDIT}),
    AGAIN: frozenset(),
}
"""Loops by name; a further signal is one more row."""


class Side:
    """A loop of its own: model, optimizer, data, and what watches over them."""

    def __init__(self, signals: frozenset[Signal], folder: Path, rank: int) -> None:
        run_dir = RunDir.at(folder)
        run_dir.create()
        torch.manual_seed(0)
        self.preset = PRESETS["demo"]
        self.model = DistributedDataParallel(GPT(self.preset))
        exactness.settle_buckets(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.signals = signals
        self.number = 0
        self.voice = Voice(run_dir, "overhead", rank, 1)
        self.log = StepLog(self.voice, RANKS, 0, torch.device("cpu"))
        settings = Settings(replicas_every_steps=BLOCK, audit_every_steps=BLOCK)
        protected = Protected(RANKS)
        protected.add(model=self.model, optimizer=self.optimizer)
        self.loss: Callable[[Any], Tensor] = self._loss
        self.clip: Callable[..., Tensor] = clip_grad_norm_
        self.batches: Iterator[Any] = self._made(rank)
        if Signal.OWN_TIME in signals:
            self.log.pace.watch(self.model)
            self.log.pace.watch_optimizer(self.optimizer)
            self.batches = Batches(Endless(self.batches), self.log.pace.enter)
        if Signal.EVENTS in signals:
            self.log.begin_at(0)
        if Signal.HEALTH in signals:
            self.health = Health(self.voice, self.log.observed, settings, False, RANKS)
            self.health.watch_optimizer(self.optimizer)
            self.health.name(protected.names())
            self.clip = self.health.clip
        if Signal.REPLICAS in signals:
            self.replicas = Replicas(
                self.voice, settings, rank, RANKS, False, names=protected.replicated
            )
        if Signal.AUDIT in signals:
            self.audit = Audit(self.voice, settings, rank, RANKS)
            self.loss = self.audit.watch(self.model, lambda model, batch: model(*batch))
            self.optimizer.register_step_pre_hook(lambda *_: self.audit.before_update())

    def block(self) -> tuple[float, float]:
        """Seconds that a block of steps takes, of both ranks together, and of this processor."""
        dist.barrier()
        began, began_cpu = time.perf_counter(), time.process_time()
        for _ in range(BLOCK):
            self._step()
        dist.barrier()
        return time.perf_counter() - began, time.process_time() - began_cpu

    def _step(self) -> None:
        self.number += 1
        self._begin()
        batch = next(self.batches)
        loss = self.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        if Signal.EVENTS in self.signals or Signal.HEALTH in self.signals:
            self.log.observed.add(loss, batch[0].numel())
            self.voice.slot.beat()
        self.clip(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._finish()

    def _begin(self) -> None:
        if Signal.HEALTH in self.signals:
            self.health.begin(self.number)
        if Signal.AUDIT in self.signals:
            self.audit.begin(self.number)
        if Signal.OWN_TIME in self.signals or Signal.EVENTS in self.signals:
            self.log.pace.start()

    def _finish(self) -> None:
        if Signal.HEALTH in self.signals:
            self.health.finish(self.number, last=False)
        if Signal.REPLICAS in self.signals:
            self.replicas.finish(self.number, last=False)
        if Signal.EVENTS in self.signals:
            self.log.finish(self.number, last=False, digests=dict)
        elif Signal.OWN_TIME in self.signals:
            self.log.pace.stop()
        elif Signal.HEALTH in self.signals:
            self.log.observed.take(self.number)

    def _loss(self, batch: Any) -> Tensor:
        loss: Tensor = self.model(*batch)
        return loss

    def _made(self, rank: int) -> Iterator[tuple[Tensor, Tensor]]:
        shape, seeded = (BATCH, self.preset.context), torch.Generator().manual_seed(rank)
        inputs = torch.randint(self.preset.vocabulary, shape, generator=seeded)
        while True:
            yield inputs, inputs


@dataclass(frozen=True, slots=True)
class Endless:
    """A loader, as `Batches` wants one."""

    batches: Iterator[Any]

    def __iter__(self) -> Iterator[Any]:
        return self.batches


# ── rounds ──────────────────────────────────────────────────────────────────────────────────────


Round = dict[str, tuple[float, float]]
"""Seconds of a step, and of a processor for it, by loop."""


def work(rank: int, folder: Path, names: Sequence[str], minutes: float) -> list[Round]:
    """Take turns until the time is over."""
    exactness.pin(1, "cpu", exact=False)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(folder / "store"), RANKS),
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=300),
    )
    sides = {name: Side(ROWS[name], folder / name.replace(" ", "-"), rank) for name in names}
    for side in sides.values():
        side.block()  # warms up
    rounds: list[Round] = []
    until = time.monotonic() + 60 * minutes
    ended = torch.zeros(1)
    while not ended.item():
        there = {name: sides[name].block() for name in names}
        back = {name: sides[name].block() for name in reversed(names)}
        rounds.append({name: mean(there[name], back[name]) for name in names})
        ended.fill_(time.monotonic() > until)
        dist.broadcast(ended, 0)
        if rank == 0 and len(rounds) % 10 == 0:
            print(f"  {len(rounds)} rounds", file=sys.stderr, flush=True)
    dist.destroy_process_group()
    return rounds


def mean(there: tuple[float, float], back: tuple[float, float]) -> tuple[float, float]:
    """Of a step, from two blocks."""
    return (there[0] + back[0]) / (2 * BLOCK), (there[1] + back[1]) / (2 * BLOCK)


def forked(names: Sequence[str], minutes: float, folder: Path) -> list[Round]:
    """What rank 0 timed."""
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                rounds = work(rank, folder, names, minutes)
                (folder / f"rounds-{rank}").write_text(json.dumps(rounds))
                code = 0
            except Exception:  # noqa: BLE001  # a child of ours must not go on as the parent
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if codes != [0] * RANKS:
        raise SystemExit(f"ranks ended with {codes}")
    found: list[Round] = json.loads((folder / "rounds-0").read_text())
    return found


# ── what they say ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of a loop to the plain one."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> "Ratio":
        """The median, and where 95 % of the medians of resampled rounds lie."""
        chance = random.Random(0)
        medians = sorted(
            statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(2_000)
        )
        return cls(statistics.median(ratios), medians[50], medians[-51])

    @property
    def is_one(self) -> bool:
        """As near to 1 as a claim of one per cent needs."""
        return self.low <= 1 <= self.high and max(self.high - 1, 1 - self.low) <= RESOLVED

    def __str__(self) -> str:
        return f"{self.middle:.4f}   {self.low:.4f} to {self.high:.4f}"


def verdict(ratio: Ratio, again: Ratio) -> str:
    """Whether the target is met, if this machine can tell."""
    if ratio.low > TARGET and again.high < ratio.low:
        return "missed"
    if ratio.high <= TARGET and again.is_one:
        return "met"
    return "unresolved"


def ratios(rounds: Sequence[Round], which: int) -> dict[str, Ratio]:
    """Each loop beside the plain one."""
    return {
        name: Ratio.of([one[name][which] / one[PLAIN][which] for one in rounds])
        for name in rounds[0]
        if name != PLAIN
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", action="store_true", help="time each signal alone too")
    parser.add_argument("--minutes", type=float, default=4, help="how long to time (default: 4)")
    options = parser.parse_args()
    names = list(ROWS) if options.each else [PLAIN, ALL, AGAIN]
    where = machine(f"torch {torch.__version__}", "gloo")
    print(f"{where}; {RANKS} ranks, blocks of {BLOCK} steps")
    with tempfile.TemporaryDirectory() as folder:
        rounds = forked(names, options.minutes, Path(folder))
    wall, cpu = ratios(rounds, 0), ratios(rounds, 1)
    print(f"\n{len(rounds)} rounds; a step over one of the plain loop, and where 95 % lies")
    print(f"{'':>16}   {'time':27}   processor time")
    for name, ratio in wall.items():
        print(f"{name:>16}   {ratio}   {cpu[name]}")
    answer = verdict(wall[ALL], wall[AGAIN])
    print(f"target {TARGET} with all on, the audit apart: {answer}", end="; ")
    print(f"by processor time: {verdict(cpu[ALL], cpu[AGAIN])}")
    print(json.dumps(document(rounds, wall, cpu, where)))
    return 1 if answer == "missed" else 0


def document(
    rounds: Sequence[Round], wall: Mapping[str, Ratio], cpu: Mapping[str, Ratio], where: str
) -> dict[str, Any]:
    """The last line."""

    def told(of: Mapping[str, Ratio]) -> dict[str, list[float]]:
        return {n: [round(it, 4) for it in (r.middle, r.low, r.high)] for n, r in of.items()}

    return {
        "benchmark": "overhead",
        "unit": "s a step",
        "ours": round(statistics.median(one[ALL][0] for one in rounds), 5),
        "other": round(statistics.median(one[PLAIN][0] for one in rounds), 5),
        "ratio": round(wall[ALL].middle, 4),
        "target": TARGET,
        "answer": verdict(wall[ALL], wall[AGAIN]),
        "answer_of_processor_time": verdict(cpu[ALL], cpu[AGAIN]),
        "each": told(wall),
        "each_of_processor_time": told(cpu),
        "rounds": len(rounds),
        "machine": where,
    }


if __name__ == "__main__":
    sys.exit(main())
