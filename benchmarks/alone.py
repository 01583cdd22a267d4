"""What the harness adds to a step, by processor time and with no training between: any machine can tell that.

Each part acts as in the loops of `benchmarks.loops`, at the harness' own default for how often.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

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
    log = StepLog(Voice(run_dir, "alone", 0, 1), RANKS, 0, torch.device("cpu"))
    settings = Settings()
    model = model_of_the_demo()
    return {
        "own time": _own_time_us(log, model),
        "events": _events_us(log),
        "health": _health_us(log, model, settings),
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


def _health_us(log: StepLog, model: nn.Module, settings: Settings) -> float:
    """Clipping and an optimizer's step that are watched, less the same that are not."""
    loss = torch.ones(())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    plain, watched = (torch.optim.AdamW(model.parameters(), lr=1e-9) for _ in range(2))
    health = Health(log._voice, log.observed, settings, False, RANKS)
    health.watch_optimizer(watched)
    health.name({parameter: name for name, parameter in model.named_parameters()})

    def bare(_: int) -> None:
        clip_grad_norm_(model.parameters(), 1.0)
        plain.step()

    def act(number: int) -> None:
        health.begin(number)
        log.observed.add(loss, 1)
        health.clip(model.parameters(), 1.0)
        watched.step()
        health.finish(number, last=False)
        log.observed.take(number)

    return max(0.0, _each_us(act, 200) - _each_us(bare, 200))


def _replicas_us(model: nn.Module) -> float:
    weights = list(model.parameters())
    return _each_us(lambda _: hashed(weights), 50)


def _each_us(act: Callable[[int], object], times: int = 1_000) -> float:
    """Of the best of five turns, for one call."""
    best = math.inf
    for turn in range(5):
        began = time.process_time()
        for number in range(times):
            act(turn * times + number + 1)
        best = min(best, time.process_time() - began)
    return best / times * 1e6
