"""The loops that `benchmarks.overhead` compares: plain, and with what the harness adds to it."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from benchmarks.together import checkpointer, messages, opened
from harness import exactness
from harness.batches import Batches
from harness.checkpoint.overlap import Overlap, pays
from harness.checkpoint.save import Checkpointer
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


class Signal(Enum):
    """What can be added to a plain loop."""

    OWN_TIME = auto()
    """Hooks on gradients and optimizer, and batches that are counted."""
    EVENTS = auto()
    """The log of steps and the slot."""
    HEALTH = auto()
    REPLICAS = auto()
    AUDIT = auto()
    MEMORY = auto()
    """Copies of the state for the memory tier: no signal, but what protection costs."""


PLAIN, AGAIN, ALL, SAVED = "plain", "plain again", "all", "all, dense saves"
_ALL = frozenset(Signal) - {Signal.AUDIT, Signal.MEMORY}
ROWS: Mapping[str, frozenset[Signal]] = {
    PLAIN: frozenset(),
    ALL: _ALL,
    SAVED: _ALL | {Signal.MEMORY},
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

    def __init__(
        self, signals: frozenset[Signal], folder: Path, rank: int, told: Mapping[str, Any]
    ) -> None:
        """`told` is what `together.checkpointer` needs."""
        run_dir = RunDir.at(folder)
        run_dir.create()
        torch.manual_seed(0)
        self.preset = PRESETS["demo"]
        self.model = DistributedDataParallel(model_of_the_demo())
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
        self.protected = protected
        self.saver: Checkpointer | None = None
        self.blocked_s: list[float] = []
        """How long each save stopped this rank."""
        if Signal.MEMORY in signals:
            self.saver = self._saving(told)

    def close(self) -> None:
        """Leave nothing in memory."""
        if self.saver is not None:
            self.saver.close(over=True)

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
        if self.saver is not None:
            began = time.perf_counter()
            self.saver.at_step(self.number, self.protected.shared, self._own)
            if self.number % BLOCK == 0:
                self.blocked_s.append(time.perf_counter() - began)

    def _saving(self, told: Mapping[str, Any]) -> Checkpointer:
        """As a job under `harness run` saves, once in a block."""
        cores = len(os.sched_getaffinity(0)), RANKS, 1
        overlap = Overlap(self.protected.still, print, pays("auto", "cpu", *cores))
        saver = checkpointer(
            told,
            opened(told),
            messages(told["rank"]),
            every_steps=0,
            memory_every=BLOCK,
            overlap=overlap,
        )
        self.optimizer.register_step_pre_hook(lambda *_: overlap.announce())
        self.optimizer.register_step_pre_hook(lambda *_: saver.settle())
        saver.prepare(self.protected.shared, self._own, fresh=True)
        return saver

    def _own(self) -> dict[str, Any]:
        return {**self.protected.own(), "rng": exactness.capture_rng()}

    def _loss(self, batch: Any) -> Tensor:
        loss: Tensor = self.model(*batch)
        return loss

    def _made(self, rank: int) -> Iterator[tuple[Tensor, Tensor]]:
        shape, seeded = (BATCH, self.preset.context), torch.Generator().manual_seed(rank)
        inputs = torch.randint(self.preset.vocabulary, shape, generator=seeded)
        while True:
            yield inputs, inputs


def model_of_the_demo() -> nn.Module:
    """What all loops train."""
    return GPT(PRESETS["demo"])


@dataclass(frozen=True, slots=True)
class Endless:
    """A loader, as `Batches` wants one."""

    batches: Iterator[Any]

    def __iter__(self) -> Iterator[Any]:
        return self.batches
