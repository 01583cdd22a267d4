"""What a training loop talks to: join, ddp, protect, batches, steps, observe, evaluating.

Nothing of the loop is replaced. `join` finds the state to resume from before any collective,
`steps` loads it, and from there on the job goes on as if it had never stopped.
"""

import atexit
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import torch
import xxhash
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import PrefixStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from harness import events, exactness, session, settings
from harness.checkpoint.restore import choose
from harness.checkpoint.save import Saver
from harness.components import Protected
from harness.data import Batches
from harness.drain import Drain
from harness.events import EXIT_CODES, Event, Outcome, Tier
from harness.membership import (
    Membership,
    another_client,
    connect,
    start_ticks,
    without_prefix,
)
from harness.observed import Evaluation, Observed
from harness.pace import Pace
from harness.points import Point, reach
from harness.recorder import Recorder, boot_id
from harness.rundir import RunDir
from harness.slots import Mark, SlotWriter

LOG = logging.getLogger("harness")
DURABLE_WITHIN_S = 600.0
"""How long the last save may take to become durable before the run counts as failed."""


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
        self.device = _device(member.local_rank)
        self._member = member
        self._messages = messages
        self._launched = "HARNESS_ATTEMPT" in os.environ
        self._protected = Protected()
        self._pace = Pace()
        self._observed = Observed(late=self.device.type != "cpu")
        self._batches: Batches[Any] | None = None
        self._timed_ns = 0
        self._samples = 0
        self._ddp_options: dict[str, Any] = {}

        threads = exactness.threads_for(self.settings.threads, member.local_world_size)
        self._switches = exactness.pin(threads, self.device, self.settings.exact)
        exactness.seed_all(self.settings.seed, self.rank)
        writer = f"rank-{self.rank}"
        self._recorder = Recorder(self.run_dir, agreed.run_id, writer, self.attempt)
        self._slot = SlotWriter(self.run_dir.slot(self.rank), self.attempt)
        self._register(agreed.run_id)
        reach(Point.JOIN)
        store = session.checkpoint_store(self.run_dir, agreed.run_id, self.settings)
        self._slot.update(mark=Mark.RESTORING)
        self._tell(events.RestoreStarted())
        self._found = choose(
            store,
            another_client(messages),
            rank=self.rank,
            world_size=self.world_size,
            attempt=self.attempt,
            resume=session.resume_from(
                self.settings.resume, store.departures(), self.attempt, member.restart_count
            ),
            recorder=self._recorder,
        )
        self._store = store
        self._form_group()

    @property
    def seed(self) -> int:
        """Base of every random stream of the run, for samplers and the like."""
        return self.settings.seed

    def ddp(self, model: nn.Module, **options: Any) -> DistributedDataParallel:
        """`model` in DDP whose resume is exact; `options` are DDP's own.

        The order in which DDP reduces is settled now, by no batch and no loss, and is the same at
        every start. Raises `ValueError` for `static_graph`, which would record that first pass.
        """
        if options.get("static_graph"):
            raise ValueError(
                "static_graph=True would take the harness' first pass for yours: leave it out"
            )
        if self.device.type == "cuda":
            options.setdefault("device_ids", [self.local_rank])
        wrapped = DistributedDataParallel(model, **options)
        exactness.settle_buckets(wrapped)
        self._pace.watch(model)
        self._ddp_options = options
        return wrapped

    def protect(self, **objects: Any) -> None:
        """Put objects under protection by name: their state is saved, restored and proved.

        Models, optimizers, and whatever has `state_dict` and `load_state_dict`. Raises
        `ValueError` that lists every object or leaf that cannot be saved exactly.
        """
        self._protected.add(**objects)

    def batches(self, loader: DataLoader[Any]) -> Batches[Any]:
        """An endless iterator over `loader` that counts what is consumed, not what is prefetched."""
        self._batches = Batches(loader)
        return self._batches

    def observe(self, *, loss: Tensor | float | None = None, tokens: int = 0) -> None:
        """Say what a micro-batch on this rank came to. The loss is kept detached and read later."""
        self._observed.add(loss, tokens)

    @contextmanager
    def evaluating(self) -> Iterator[Evaluation]:
        """Mark time spent on held-out data; set `loss` of what this yields."""
        started_ns = time.monotonic_ns()
        evaluation = Evaluation(self._step)
        self._slot.update(mark=Mark.EVALUATING)
        self._tell(events.EvaluationStarted(self._step))
        yield evaluation
        self._tell(events.EvaluationFinished(self._step, evaluation.loss))
        self._slot.update(mark=Mark.STEPPING)
        self._pace.set_aside(time.monotonic_ns() - started_ns)

    def steps(self, total: int) -> Iterator[int]:
        """Numbers of the steps still to do, up to `total`; the first ever is 1.

        Restores first, saves by policy at step boundaries, and returns when the last state is
        durable. Leaves by `SystemExit(75)` when a drain was asked for and its save is done.
        Raises `ValueError` that lists every difference if the saved state does not fit.
        """
        if changed := exactness.changed(self._switches):
            raise ValueError("\n  ".join(["exactness needs its switches:", *changed]))
        step = self._resume(total)
        drain = self._drain()
        while step < total:
            if drain is not None and drain.at_boundary(step):
                self._leave(step)
            self._step = step + 1
            reach(Point.STEP_START)
            self._pace.start()
            yield step + 1
            step += 1
            self._finish_step(step, last=step == total)
            if step < total:
                self._saver.at_step(step, self._protected.shared, self._own)
        if drain is not None:
            drain.close()
        self._finish(step)

    # ── one step ────────────────────────────────────────────────────────────────────────────

    def _finish_step(self, step: int, last: bool) -> None:
        passed = self._pace.stop()
        mean = self._observed.mean()
        observation = self._observed.take(step)
        ids = np.empty(0, np.int64) if self._batches is None else self._batches.take_ids()
        samples = xxhash.xxh3_64_hexdigest(ids.astype("<i8").tobytes())
        before, self._samples = self._samples, self._position()
        self._slot.update(
            mark=Mark.STEPPING,
            step=step,
            own_ns=passed.own_ns,
            wait_ns=passed.wait_ns,
            loss=observation.loss,
        )
        self._tell(
            events.StepFinished(
                step=step,
                samples_start=before,
                samples_end=self._samples,
                samples_digest=samples,
                tokens=observation.tokens * self.world_size,
                loss=observation.loss,
                loss_step=observation.loss_step,
            )
        )
        now_ns = self._recorder.now_ns()
        if last or now_ns - self._timed_ns >= 1_000_000_000:
            self._timed_ns = now_ns
            self._recorder.write(events.StepTimed(step, passed.own_ns, passed.wait_ns))
        every = self.settings.digest_every_steps
        if last or (every and step % every == 0):
            self._write_digests(step, samples, mean)
        reach(Point.STEP_END)

    def _write_digests(self, step: int, samples: str, loss: Tensor | None) -> None:
        components = dict(self._protected.digests())
        components["rng"] = exactness.rng_digest()
        components["samples"] = samples
        components["loss"] = "" if loss is None else float(loss).hex()
        self._recorder.write(events.StateDigested(step, components))

    def _position(self) -> int:
        """Samples consumed over all ranks; 0 where the sampler is not one of ours."""
        sampler = None if self._batches is None else self._batches.sampler
        return 0 if sampler is None else sampler.position

    def _own(self) -> dict[str, Any]:
        return {**self._protected.own(), "rng": exactness.capture_rng()}

    # ── beginning and end ───────────────────────────────────────────────────────────────────

    def _register(self, run_id: str) -> None:
        """Say who this process is, in the log and for an injector to check."""
        ticks = start_ticks(os.getpid())
        if self.rank == 0 and not self._launched:
            if self._member.restart_count == 0:
                self._tell(events.RunStarted(run_id, self.world_size, tool="torchrun"))
            self._tell(events.AttemptStarted(self.world_size))
        self._recorder.write(events.RankJoined(os.getpid(), ticks))
        worker = {
            "schema": 1,
            "rank": self.rank,
            "local_rank": self.local_rank,
            "pid": os.getpid(),
            "start_ticks": ticks,
            "boot_id": boot_id(),
            "attempt": self.attempt,
            "event_file": str(self._recorder.path),
        }
        path = self.run_dir.worker(self.rank)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_bytes(msgspec.json.encode(worker))
        temporary.replace(path)

    def _form_group(self) -> None:
        if not dist.is_initialized():
            cuda = self.device.type == "cuda"
            dist.init_process_group(
                "cuda:nccl,cpu:gloo" if cuda else "gloo",
                store=PrefixStore("group", another_client(self._messages)),
                rank=self.rank,
                world_size=self.world_size,
                device_id=self.device if cuda else None,
            )
            atexit.register(dist.destroy_process_group)
        self._tell(events.GroupFormed(self.world_size))

    def _resume(self, total: int) -> int:
        """Load the chosen state, if there is one; the number of steps that it has finished."""
        found = self._found
        now = exactness.fingerprint(self.device, self.world_size, self._ddp_options)
        self._saver = Saver(
            self._store,
            another_client(self._messages),
            rank=self.rank,
            world_size=self.world_size,
            attempt=self.attempt,
            recorder=self._recorder,
            fingerprint=now,
            every_steps=self.settings.save_every_steps,
            keep=self.settings.keep,
            slot=self._slot,
        )
        self._step = 0 if found is None else found.step
        if found is not None:
            if found.step > total:
                raise ValueError(
                    f"the run is at step {found.step} already, past the {total} asked for"
                )
            self._check_environment(found.fingerprint, now)
            own = dict(found.own)
            rng = own.pop("rng")
            self._protected.restore(found.shared, own)
            if found.new_rank:
                exactness.seed_all(self.settings.seed, self.rank, found.step)
            else:
                exactness.restore_rng(rng)
            self._samples = self._position()
        self._found = None  # its tensors are as large as the state
        self._tell(
            events.TrainingResumed(0, None)
            if found is None
            else events.TrainingResumed(found.step, Tier.STORAGE, found.saved_by)
        )
        self._slot.update(mark=Mark.STEPPING, step=self._step)
        return self._step

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

    def _drain(self) -> Drain | None:
        if not self._launched:
            return None
        request = another_client(without_prefix(self._messages))
        return Drain(request, another_client(self._messages), self.rank, self.world_size)

    def _leave(self, step: int) -> None:
        """Save and go: somebody wants the machine back."""
        self._save_last(step)
        self._slot.update(mark=Mark.DRAINED)
        raise SystemExit(EXIT_CODES[Outcome.DRAINED])

    def _finish(self, step: int) -> None:
        self._tell(events.TrainingFinished(step))
        self._save_last(step)
        self._slot.update(mark=Mark.FINISHED)
        if self.rank == 0 and not self._launched:
            atexit.register(self._tell, events.RunFinished(Outcome.FINISHED))

    def _save_last(self, step: int) -> None:
        self._slot.update(mark=Mark.SAVING)
        self._saver.at_step(step, self._protected.shared, self._own, force=True)
        durable = self._saver.finish(DURABLE_WITHIN_S)
        self._saver.close()
        if not durable:
            raise RuntimeError(
                f"the state after step {step} did not become durable: see the lines above"
            )

    def _tell(self, event: Event) -> None:
        """Write an event of the whole job: rank 0 speaks for it."""
        if self.rank == 0:
            self._recorder.write(event)


def _device(local_rank: int) -> torch.device:
    """The one place that tells CPU from CUDA before a tensor exists."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ValueError(f"local rank {local_rank} has no GPU of its own: {count} are visible")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
