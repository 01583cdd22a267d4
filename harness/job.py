"""What a training loop talks to: join, ddp, protect, batches, steps, observe, evaluating.

Nothing of the loop is replaced. `join` finds the state to resume from before any collective,
`steps` loads it, and from there on the job goes on as if it had never stopped.
"""

import atexit
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.distributed import PrefixStore
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from harness import events, exactness, session, settings
from harness.arming import arm_from
from harness.batches import Batches
from harness.checkpoint.named import Folder, sweep
from harness.checkpoint.overlap import Overlap, pays
from harness.checkpoint.recollection import Recollection
from harness.checkpoint.refusals import told_as_outage
from harness.checkpoint.restore import choose
from harness.checkpoint.save import Checkpointer
from harness.checkpoint.tell import said, warn
from harness.checkpoint.whereabouts import whereabouts
from harness.components import Protected
from harness.drain import Drain
from harness.enrolment import device_of, enrol, form_group, launched_by_us
from harness.events import EXIT_CODES, Outcome, Tier
from harness.intervals.begin import Overheard, begun, keeps_memory
from harness.membership import Membership, another_client, connect, without_prefix
from harness.observed import Evaluation
from harness.points import Point, reach
from harness.rundir import RunDir
from harness.signals.watch import Watch
from harness.sigterm import Notice
from harness.slots import Mark
from harness.steplog import StepLog
from harness.storage import checkpoint_store
from harness.voice import Voice

LOG = logging.getLogger("harness")
DURABLE_WITHIN_S = 600.0
"""How long the last save may take to become durable before the run counts as failed."""
TORCHRUN_GRACE_S = 30.0
"""What torchrun gives its ranks between SIGTERM and SIGKILL."""


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
        cores = len(os.sched_getaffinity(0)), member.local_world_size, threads
        is_on = pays(self.settings.overlap, self.device.type, *cores)
        self._overlap = Overlap(self._protected.still, warn, is_on)
        exactness.seed_all(self.seed, self.rank)
        self._voice = Voice(self.run_dir, agreed.run_id, self.rank, self.attempt)
        self._steplog = StepLog(
            self._voice, self.world_size, self.settings.digest_every_steps, self.device
        )
        self._watch = Watch(
            self._voice,
            self._steplog.observed,
            self._protected,
            self.settings,
            self.rank,
            self.world_size,
            late=self.device.type != "cpu",
        )
        enrol(self._voice, member, agreed, self.device)
        reach(Point.JOIN)
        with told_as_outage(self.settings.checkpoints or str(self.run_dir.checkpoints)):
            self._store = checkpoint_store(self.run_dir, agreed.run_id, self.settings)
            self._found = self._choose(member.restart_count, member.launcher())
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
        known peak is measured. Raises `ValueError` once `steps` has begun.
        """
        if self._step is not None:
            raise ValueError(
                "count_flops inside job.steps() would take a step's time: count before"
            )
        if self.rank == 0:
            self._steplog.arithmetic.count(forward, tokens)

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
                thing.register_step_pre_hook(self._settle)
                self._steplog.pace.watch_optimizer(thing)
                self._watch.watch_optimizer(thing)

    def _settle(self, *_: Any) -> None:
        """Before what may be copied beside training changes: have it copied."""
        if self._step is not None:
            self._saver.settle()

    def batches(self, loader: DataLoader[Any]) -> Batches[Any]:
        """An endless iterator over `loader` that counts what is consumed, not what is prefetched."""
        batches: Batches[Any] = Batches(loader, self._steplog.pace.enter)
        self._steplog.batches = batches
        return batches

    def observe(self, *, loss: Tensor | float | None = None, tokens: int = 0) -> None:
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
        self._settle()  # weights may be swapped for averages
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
        self._check_data()
        step = self._resume(total)
        drain = self._drain()
        while step < total:
            if drain.at_boundary(step):
                self._leave(step)
            self._step = step + 1
            reach(Point.STEP_START)
            self._watch.begin(step + 1)
            self._steplog.pace.start()
            try:
                yield step + 1
            except GeneratorExit:
                LOG.warning("harness: the loop was left in step %d: end it by job.stop()", step + 1)
                raise
            step += 1
            total = step if self._stopping else total
            self._watch.finish(step, step == total)
            self._steplog.finish(step, step == total, self._digests)
            reach(Point.STEP_END)
            self._check_switches()
            if step < total and self._cadence.at_boundary(step, self._saver.commit_s):
                self._saver.every_steps = self._cadence.every(Tier.STORAGE)
                self._saver.memory_every = self._cadence.every(Tier.MEMORY)
                self._saver.at_step(step, self._protected.shared, self._own)
        drain.close()
        self._finish(step)

    # ── what is saved, and what is proved ───────────────────────────────────────────────────

    def _own(self) -> dict[str, Any]:
        return {**self._protected.own(), "rng": exactness.capture_rng()}

    def _digests(self) -> dict[str, str]:
        return {**self._protected.digests(), "rng": exactness.rng_digest()}

    # ── beginning ───────────────────────────────────────────────────────────────────────────

    def _choose(self, restarts: int, launcher: int) -> Any:
        """The newest state that all ranks could verify; None to start from nothing."""
        self._voice.show(mark=Mark.RESTORING)
        self._voice.tell(events.RestoreStarted())
        departures = self._store.departures()
        asked = self.settings.resume
        # Before any attempt has begun there is nothing that one could have left.
        savers = self._savers() if departures and self._keeps() else []
        self._memory = Recollection(
            savers, self._store.run_id, self.rank, self.world_size, self._folder(launcher)
        )
        found = choose(
            self._store,
            another_client(self._messages),
            rank=self.rank,
            world_size=self.world_size,
            attempt=self.attempt,
            resume=session.resume_from(asked, departures, self.attempt, restarts),
            recorder=self._voice,
            alive=self._voice.slot.beat,
            memory=self._memory,
        )
        at, tier = (0, None) if found is None else (found.step, self._tier())
        self._voice.tell(events.StateFound(at, tier))
        return found

    def _tier(self) -> Tier:
        """Where the chosen state was."""
        return Tier.STORAGE if self._memory.resumed is None else Tier.MEMORY

    def _keeps(self) -> bool:
        """There is to be a memory tier: someone holds what ranks leave."""
        held = bool(os.environ.get("HARNESS_SAVER") or self.settings.memory_dir)
        return held and keeps_memory(self.settings)

    def _folder(self, launcher: int) -> Folder | None:
        """Where copies in memory have names, if they have; ours from here on."""
        if not (self.settings.memory_dir and self._keeps()):
            return None
        folder = Folder.of(self.settings.memory_dir, self._store.run_id)
        try:
            folder.claim(self.run_dir, launcher)  # held until this process ends
        except OSError as error:
            raise ValueError(
                f"memory_dir = {self.settings.memory_dir!r} cannot be used: {said(error)}"
            ) from error
        if self.rank == 0:
            sweep(self.settings.memory_dir, folder)
        return folder

    def _savers(self) -> list[str]:
        """Where memory may be held: at our saver, or at that of a launcher that was killed."""
        mine, earlier = os.environ.get("HARNESS_SAVER", ""), whereabouts(self.run_dir)
        return [address for address in (mine, earlier) if address]

    def _check_data(self) -> None:
        """Refuse, or say, that the place in the data will be in no checkpoint."""
        batches = self._steplog.batches
        if batches is None or any(map(self._protected.holds, batches.keepers())):
            return
        if batches.sampler is not None:
            raise ValueError(
                "job.batches draws by a ResumableSampler that is not protected, so a resume would"
                " begin the data anew: add it, as in job.protect(data=sampler)"
            )
        if self.rank == 0:
            LOG.warning(
                "harness: the place in the data is in no checkpoint, so a resume begins the loader"
                " anew: draw by harness.ResumableSampler, or protect what knows the place"
            )

    def _check_switches(self) -> None:
        """Raise `ValueError` if a switch that decides bits is not as `join` left it."""
        if self.settings.exact and (changed := exactness.changed(self._switches)):
            raise ValueError("\n  ".join(["exactness needs its switches:", *changed]))

    def _resume(self, total: int) -> int:
        """Load the chosen state, if there is one; the number of steps that it has finished."""
        self._check_switches()
        now = exactness.fingerprint(
            self.device, self.world_size, exactness.reductions(self._settled)
        )
        self._cadence = begun(
            self.settings,
            another_client(self._messages),
            self.run_dir,
            self._voice,
            self.rank,
            memory=self._keeps(),
        )
        self._saver = Checkpointer(
            self._store,
            another_client(self._messages),
            rank=self.rank,
            world_size=self.world_size,
            attempt=self.attempt,
            recorder=Overheard(self._voice, self._cadence.saved),
            fingerprint=now,
            every_steps=self._cadence.every(Tier.STORAGE),
            keep=self.settings.keep,
            slot=self._voice.slot,
            saver=os.environ.get("HARNESS_SAVER", ""),
            memory_every=self._cadence.every(Tier.MEMORY) if self._keeps() else None,
            memory=self._memory,
            vouch=self._watch.vouch,
            overlap=self._overlap,
        )
        self._memory.close()
        if self.rank == 0:
            session.note_environment(self.run_dir, now)
        resumed = events.TrainingResumed(0, None, total_steps=total)
        if self._found is not None:
            resumed = self._load(now, total, self._tier())
        self._watch.start()
        self._saver.prepare(self._protected.shared, self._own, fresh=self._found is None)
        self._found = None  # its tensors are as large as the state
        self._voice.tell(resumed)
        self._steplog.begin_at(resumed.step)
        self._step = resumed.step
        return resumed.step

    def _load(self, now: Mapping[str, str], total: int, tier: Tier) -> events.TrainingResumed:
        """Put the chosen state in place, if it belongs here."""
        found = self._found
        if found.step > total:
            raise ValueError(
                f"the run is at step {found.step} already, past the {total} asked for: ask for more,"
                " or name another run directory"
            )
        self._check_environment(found.fingerprint, now)
        own = dict(found.own)
        rng = own.pop("rng")
        self._protected.restore(found.shared, own)
        if found.new_rank:
            exactness.seed_all(self.seed, self.rank, found.step)
        else:
            exactness.restore_rng(rng)
        if self.settings.digest_every_steps:
            self._voice.write(events.StateDigested(found.step, self._digests()))
        return events.TrainingResumed(found.step, tier, found.saved_by, total)

    def _check_environment(self, saved: Mapping[str, str], now: Mapping[str, str]) -> None:
        """Refuse, or say, that the resumed run may differ in its bits from one that never stopped."""
        differences = exactness.mismatches(saved, now)
        if not differences:
            return
        # Other ranks add in another order: whoever starts fewer or more has chosen other bits.
        if self.settings.exact and saved.get("world_size") == now["world_size"]:
            raise ValueError("\n  ".join(["this is not where the state was saved:", *differences]))
        if self.rank == 0:
            LOG.warning("harness: bits may differ from here on: %s", "; ".join(differences))

    def _drain(self) -> Drain:
        # Plain torchrun's one store outlives an attempt: what was asked of it is not to reach the next.
        place = without_prefix(self._messages) if launched_by_us() else self._messages
        messages = another_client(self._messages)
        return Drain(another_client(place), messages, self.rank, self.world_size, self._notice)

    # ── end ─────────────────────────────────────────────────────────────────────────────────

    def _leave(self, step: int) -> None:
        """Save and go: somebody wants the machine back."""
        if not launched_by_us():
            self._voice.tell(events.DrainRequested(TORCHRUN_GRACE_S))
        self._save_last(step)
        self._voice.show(mark=Mark.DRAINED)
        if not launched_by_us():
            drained = events.RunFinished(Outcome.DRAINED, f"saved after step {step}")
            atexit.register(self._voice.tell, drained)
        raise SystemExit(EXIT_CODES[Outcome.DRAINED])

    def _finish(self, step: int) -> None:
        self._voice.tell(events.TrainingFinished(step))
        self._save_last(step)
        self._done = True
        self._voice.show(mark=Mark.FINISHED)
        self._notice.ignore()
        if not launched_by_us():
            atexit.register(self._voice.tell, events.RunFinished(Outcome.FINISHED))

    def _save_last(self, step: int) -> None:
        self._voice.show(mark=Mark.SAVING)
        self._saver.at_step(step, self._protected.shared, self._own, force=True)
        durable = self._saver.finish(DURABLE_WITHIN_S)
        self._saver.close(over=durable)
        if not durable:
            raise RuntimeError(
                f"the state after step {step} did not become durable: see the lines above"
            )
