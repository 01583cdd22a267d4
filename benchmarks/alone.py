"""What the harness adds to a step, by processor time and with no training between: any machine can tell that.

Each part acts as in the loops of `benchmarks.loops`, at the harness' own default for how often.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks.loops import RANKS, model_of_the_demo
from harness.rundir import RunDir
from harness.settings import Settings
from harness.signals.hashing import hashed
from harness.signals.health import Health
from harness.slots import Stage
from harness.steplog import StepLog
from harness.voice import Voice


def alone_us(folder: Path) -> dict[str, float]:
    """Microseconds of a step on rank 0, which has one thread, by signal."""
    torch.set_num_threads(1)
    run_dir = RunDir.at(folder)
    run_dir.create()
    voice = Voice(run_dir, "alone", 0, 1)
    log = StepLog(voice, RANKS, 0, torch.device("cpu"))
    settings = Settings()
    model = model_of_the_demo()
    return {
        "own time": _own_time_us(log, model),
        "events": _events_us(log),
        "health": _health_us(voice, log, model, settings),
        "replicas": _replicas_us(model) / settings.replicas_every_steps,
    }


def _own_time_us(log: StepLog, model: nn.Module) -> float:
    pace, ready = log.pace, torch.ones(())
    gradients = sum(parameter.requires_grad for parameter in model.parameters())

    def act(_: int) -> None:
        pace.start()
        pace.enter(Stage.LOADING)
        pace.enter(Stage.COMPUTING)
        for _gradient in range(gradients):
            pace.note(ready)
        pace.enter(Stage.UPDATING)
        pace.enter(Stage.UPDATED)
        pace.stop()

    return _each_us(act)


def _events_us(log: StepLog) -> float:
    loss = torch.ones(())

    def act(number: int) -> None:
        log.pace.start()
        log.observed.add(loss, 1)
        log.finish(number, last=False, digests=dict)

    return _each_us(act)


def _health_us(voice: Voice, log: StepLog, model: nn.Module, settings: Settings) -> float:
    """All that is done around clipping and the optimizer's step; those themselves are the loop's."""
    loss, watch = torch.ones(()), _Stopwatch()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9)
    health = Health(voice, log.observed, settings, False, RANKS)
    # Hooks run in the order in which they were registered.
    optimizer.register_step_pre_hook(lambda *_: watch.start())
    optimizer.register_step_post_hook(lambda *_: watch.start())
    health.watch_optimizer(optimizer)
    optimizer.register_step_pre_hook(lambda *_: watch.stop())
    health.name({parameter: name for name, parameter in model.named_parameters()})

    def act(number: int) -> None:
        watch.start()
        health.begin(number)
        log.observed.add(loss, 1)
        watch.stop()
        health.clip(model.parameters(), 1.0)
        optimizer.step()
        health.finish(number, last=False)
        log.observed.take(number)
        watch.stop()

    return _each_us(act, 200, watch.read)


class _Stopwatch:
    """Processor time between `start` and `stop`, added up."""

    def __init__(self) -> None:
        self._spent_s = self._since_s = 0.0

    def start(self) -> None:
        self._since_s = time.process_time()

    def stop(self) -> None:
        self._spent_s += time.process_time() - self._since_s

    def read(self) -> float:
        """Seconds so far."""
        return self._spent_s


def _replicas_us(model: nn.Module) -> float:
    weights = list(model.parameters())
    return _each_us(lambda _: hashed(weights), 50)


def _each_us(
    act: Callable[[int], object],
    times: int = 1_000,
    clock_s: Callable[[], float] = time.process_time,
) -> float:
    """Of the best of five turns, for one call."""
    best = math.inf
    for turn in range(5):
        began_s = clock_s()
        for number in range(times):
            act(turn * times + number + 1)
        best = min(best, clock_s() - began_s)
    return best / times * 1e6
