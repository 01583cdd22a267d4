"""What a training loop talks to: join, ddp, protect, batches, steps, observe, evaluating.

Nothing of the loop is replaced. `join` finds the state to resume from before any collective,
`steps` loads it, and from there on the job goes on as if it had never stopped.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, SupportsInt

import torch
from torch import Tensor, nn
from torch.distributed import PrefixStore
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from harness import events, exactness, leaving, session, settings
from harness.arming import arm_from
from harness.batches import Batches
from harness.components import Protected
from harness.enrolment import device_of, enrol, form_group
from harness.keeping import Keeping
from harness.membership import Membership, connect
from harness.observed import Evaluation
from harness.points import Point, reach
from harness.rundir import RunDir
from harness.signals.rollback import Rollback
from harness.signals.unsound import SwitchedError
from harness.signals.watch import Watch
from harness.sigterm import Notice
from harness.slots import Mark
from harness.steplog import StepLog
from harness.voice import Voice

_LOOK_S = 1.0
"""Between two looks at switches: nothing that was computed since the last one is saved without another."""


def join(*, run: str | None = None, **chosen: Any) -> "Job":
    """Take this process' place in the job, under `harness run`, `torchrun` or alone.

    `run` names the run directory where no launcher of ours has; `chosen` are settings by name
    (`seed=1, save_every_steps=100`), which flags and environment override. The process group is
    formed if the script has not formed it. Raises `ValueError` for settings that are wrong, or
    for a state that was asked for and cannot be had.
    """
    member = Membership.read(os.environ)
    messages = connect(member, os.environ)
    agreed = session.agree(messages, member.rank, lambda: session.settle(member, run, chosen))
    arm_from(os.environ, f"rank-{member.rank}", RunDir.at(agreed.run_dir))
    return Job(member, PrefixStore(f"attempt-{agreed.attempt}", messages), agreed)


class Job:
    """This rank's side of the job. Made by `join`."""

    def __init__(self, member: Membership, messages: PrefixStore, agreed: session.Session) -> None:
        self.rank = member.rank
        self.world_size = member.world_size
        self.local_rank = member.local_rank
        self.attempt = agreed.attempt
        self.run_dir = RunDir.at(agreed.run_dir)
        self.settings = settings.values(agreed.settings)
        self.device = device_of(member.local_rank)
        self._messages = messages
        self._protected = Protected(member.world_size)
        self._settled: list[DistributedDataParallel] = []
        self._done = False
        self._step: int | None = None
        """Steps begun; None while the state to go on from is not in place."""
        self._stopping = False
        self._notice = Notice()

        threads = exactness.threads_for(self.settings.threads, member.local_world_size)
        self._switches = exactness.pin(threads, self.device, self.settings.exact)
        exactness.seed_all(self.seed, self.rank)
        self._voice = Voice(self.run_dir, agreed.run_id, self.rank, self.attempt)
        self._steplog = StepLog(
            self._voice, self.world_size, self.settings.digest_every_steps, self.device
        )
        self._watch = Watch(
            self._voice,
            self._steplog.observed,
            self._steplog.pace,
            self._protected,
            self.settings,
            self.rank,
            self.world_size,
            Rollback(self.run_dir, self.attempt),
            late=self.device.type != "cpu",
            forget_copies=lambda: self._keeping.forget_copies(),  # noqa: PLW0108  # it is made below
        )
        shared = messages, agreed, self.settings, self._voice, self._protected
        self._keeping = Keeping(member, *shared, self.device, threads)
        enrol(self._voice, member, agreed, self.device)
        reach(Point.JOIN)
        self._keeping.choose(member.launcher())
        self._voice.show(mark=Mark.GROUPING)
        form_group(self._voice, member, messages, self.device)
        self._voice.show(mark=Mark.SETTING_UP)

    @property
    def seed(self) -> int:
        """Base of every random stream of the run, for samplers and the like."""
        return self.settings.seed

    def ddp(self, model: nn.Module, **options: Any) -> DistributedDataParallel:
        """`model` in DDP whose resume is exact; `options` are DDP's own.

        The order in which DDP reduces is settled now, by no batch and no loss, and is the same at
        every start. Raises `ValueError` for options that cannot be settled (`static_graph`).
        """
        if self.device.type == "cuda":
            options.setdefault("device_ids", [self.local_rank])
        wrapped = DistributedDataParallel(model, **options)
        exactness.settle_buckets(wrapped)
        self._settled.append(wrapped)
        self._steplog.pace.watch(model)
        self._steplog.arithmetic.watch(wrapped)
        return wrapped

    def count_flops(self, forward: Callable[[], Tensor], *, tokens: int) -> None:
        """Count the arithmetic of `forward`, which gives the loss of `tokens` tokens, for the MFU.

        Rank 0 runs it and its backward once, before the loop, on a batch that is made up and not
        taken from `batches`; gradients, buffers and random streams are put back. A device without a
        known peak is measured, once in a run. Raises `ValueError` once `steps` has begun.
        """
        if self._step is not None:
            raise ValueError(
                "count_flops inside job.steps() would take a step's time: count before"
            )
        if self.rank == 0:
            self._steplog.arithmetic.count(forward, tokens, self.run_dir)

    def protect(self, **objects: Any) -> None:
        """Put objects under protection by name: their state is saved, restored and proved.

        Models, optimizers, and whatever has `state_dict` and `load_state_dict`. Raises
        `ValueError` that lists every object or leaf that cannot be saved exactly, and, where the
        run is to be exact, every DDP that `ddp` did not make.
        """
        strangers = [
            f"{name} is in a DDP whose order of reduction no resume repeats: wrap it by job.ddp"
            for name, thing in objects.items()
            if isinstance(thing, DistributedDataParallel) and thing not in self._settled
        ]
        if strangers and self.settings.exact:
            raise ValueError("\n".join([*strangers, "or run with exact = false"]))
        self._protected.add(**objects)
        for thing in objects.values():
            if isinstance(thing, Optimizer):
                # Called and not traced where the step is compiled: it waits, and must do so each time.
                settle = torch.compiler.disable(lambda *_: self._keeping.before_step())  # type: ignore[no-untyped-call]  # torch's own
                thing.register_step_pre_hook(settle)
                self._steplog.pace.watch_optimizer(thing)
                self._watch.watch_optimizer(thing)

    def batches(self, loader: DataLoader[Any]) -> Batches[Any]:
        """An endless iterator over `loader` that counts what is consumed, not what is prefetched."""
        batches: Batches[Any] = Batches(loader, self._steplog.pace.enter)
        self._steplog.batches = batches
        return batches

    def observe(self, *, loss: Tensor | float | None = None, tokens: SupportsInt = 0) -> None:
        """Say what a micro-batch on this rank came to. The loss is kept detached and read later."""
        self._steplog.observed.add(loss, tokens)
        self._voice.slot.beat()

    def clip(
        self, parameters: Tensor | Iterable[Tensor], max_norm: float, **options: Any
    ) -> Tensor:
        """`torch.nn.utils.clip_grad_norm_` itself, and the norm before clipping is told and watched.

        A gradient that is clipped otherwise is told of as the optimizer gets it.
        """
        return self._watch.health.clip(parameters, max_norm, **options)

    def audited(
        self, model: DistributedDataParallel, loss_of: Callable[[Any, Any], Tensor]
    ) -> Callable[[Any], Tensor]:
        """`loss_of(model, batch)` as a function of the batch, whose gradient others can compute too.

        What `loss_of` gives is what the loop calls `backward` on. Every `audit_every_steps` each
        rank computes the gradient of its neighbour's first micro-batch again, by the model within
        `model`, and compares the bits. Raises `CorruptionError` in the optimizer's step if they
        differ.
        """
        return self._watch.audit.watch(model, loss_of)

    @contextmanager
    def evaluating(self) -> Iterator[Evaluation]:
        """Mark time spent on held-out data; set `loss` of what this yields.

        Raises `ValueError` before `steps` has begun: a resumed state is not in place yet.
        """
        if self._step is None:
            raise ValueError(
                "evaluating() before job.steps() would score a state that is not loaded yet:"
                " evaluate inside the loop, before its first step if need be"
            )
        self._keeping.settle()  # weights may be swapped for averages
        started_ns = time.monotonic_ns()
        evaluation = Evaluation(self._step)
        # A run whose last state is durable has finished, whatever is scored after that.
        during, after = (Mark.EVALUATING, Mark.STEPPING) if not self._done else 2 * (Mark.FINISHED,)
        self._voice.show(mark=during)
        self._voice.tell(events.EvaluationStarted(evaluation.step))
        try:
            yield evaluation
        finally:  # a script may catch what went wrong, and go on
            self._voice.tell(events.EvaluationFinished(evaluation.step, evaluation.loss))
            self._voice.show(mark=after)
            self._steplog.pace.set_aside(time.monotonic_ns() - started_ns)

    def stop(self) -> None:
        """End training after the step under way, as if that were the last; on all ranks alike.

        Decide by what all ranks know, such as a validation loss that was reduced over them.
        """
        self._stopping = True

    def steps(self, total: int) -> Iterator[int]:
        """Numbers of the steps still to do, up to `total`; the first ever is 1.

        Restores first, saves by policy at step boundaries, and returns when the last state is
        durable. Leaves by `SystemExit(75)` when a drain was asked for and its save is done.
        Raises `ValueError` that lists every difference if the saved state does not fit, and if
        `batches` draws by a `ResumableSampler` that is not protected; `RuntimeError` the second
        time, for a job has one loop.
        """
        if self._step is not None:
            raise RuntimeError(
                "job.steps() a second time would count from the first step again: make one loop"
                " over all steps, and ask for the epoch in it (sampler.epoch)"
            )
        if self._steplog.batches is not None:
            self._steplog.batches.check_kept(self._protected.holds, self.rank == 0)
        step = self._resume(total)
        drain = leaving.listen(self._messages, self.rank, self.world_size, self._notice)
        look_s = 0.0
        while step < total:
            if drain.at_boundary(step):
                leaving.drained(self._voice, self._keeping, step)
            self._step = step + 1
            reach(Point.STEP_START)
            self._watch.begin(step + 1)
            self._steplog.pace.start()
            try:
                yield step + 1
            except GeneratorExit:
                leaving.left(step + 1)
                raise
            step += 1
            total = step if self._stopping else total
            self._watch.finish(step, step == total)
            self._steplog.finish(step, step == total, self._keeping.digests)
            reach(Point.STEP_END)
            if step == total or time.monotonic() >= look_s:
                self._check_switches()
                look_s = time.monotonic() + _LOOK_S
            if step < total:
                self._keeping.at_boundary(step)
        drain.close()
        leaving.finished(self._voice, self._keeping, self._notice, step)
        self._done = True

    # ── beginning ───────────────────────────────────────────────────────────────────────────

    def _check_switches(self) -> None:
        """Raise `SwitchedError` if a switch that decides bits is not as `join` left it."""
        if self.settings.exact and (changed := exactness.changed(self._switches)):
            raise SwitchedError("\n  ".join(["exactness needs its switches:", *changed]))

    def _vouch(self, tier: events.Tier) -> None:
        """Before a save: what was computed since the last look may be kept."""
        self._check_switches()
        self._watch.vouch(tier)

    def _resume(self, total: int) -> int:
        """Load the chosen state, if there is one; the number of steps that it has finished."""
        self._check_switches()
        reductions = exactness.reductions(self._settled)
        resumed = self._keeping.load(total, reductions, self._vouch)
        self._watch.start(resumed.step)
        self._keeping.begin()
        self._voice.tell(resumed)
        self._steplog.begin_at(resumed.step)
        self._step = resumed.step
        return resumed.step
