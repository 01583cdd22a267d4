"""Real ranks that train, stop and resume with and without settled buckets: one process, many cases.

Run as `python -m tests.harness.resumed_ranks`; prints one JSON object: world size → for each rank,
case → what came of it. Ranks are forked from this process, which imports torch once and computes
nothing.
"""

import copy
import json
import os
import sys
import tempfile
import traceback
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DDP's constructor imports it: once here, not once in every rank
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from harness import buckets, exactness
from harness.components import Protected
from harness.digest import digest
from harness.events import Tier
from harness.observed import Observed
from harness.pace import Pace
from harness.rundir import RunDir
from harness.settings import Settings
from harness.signals import flops
from harness.signals.rollback import Rollback
from harness.signals.watch import Watch
from harness.voice import Voice

WORLD_SIZES = (3, 4)
LAYOUTS: dict[str, dict[str, Any]] = {
    "default buckets": {},
    "small buckets": {"bucket_cap_mb": 0.002},
}
VIEWS = {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.002}


class Net(nn.Module):
    """Parameters are used in another order than they are declared in, as in many real models."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(24, 8)
        self.norm = nn.BatchNorm1d(24)
        self.first = nn.Linear(16, 24)
        self.middle = nn.Linear(24, 24)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(torch.relu(self.first(x)))
        out: Tensor = self.head(self.dropout(torch.relu(self.middle(x) + x)))
        return out


class Odd(nn.Module):
    """Many kinds of parameters, and no forward in the class."""

    def __init__(self) -> None:
        super().__init__()
        self.short = nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
        self.long = nn.Parameter(torch.ones(3, 2, dtype=torch.float64))
        self.waves = nn.Parameter(torch.ones(4, dtype=torch.complex64))
        self.frozen = nn.Parameter(torch.ones(7), requires_grad=False)
        self.words = nn.Embedding(6, 2, sparse=True)
        self.tied = self.short


class Run:
    """What a fresh process has: a model in DDP, an optimizer, both protected."""

    def __init__(self, rank: int, cured: bool, options: dict[str, Any], half: bool = False) -> None:
        exactness.seed_all(0, rank)
        self.rank = rank
        self.autocast = partial(torch.autocast, "cpu", torch.bfloat16, enabled=half)
        self.model = DistributedDataParallel(Net(), **options)
        if cured:
            exactness.settle_buckets(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.protected = Protected()
        self.protected.add(model=self.model, optimizer=self.optimizer)

    def train(self, steps: range) -> dict[str, str]:
        for step in steps:
            self._loss_of(self._batch(step)).backward()  # type: ignore[no-untyped-call]  # torch's own
            clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self.protected.digests() | {"rng": exactness.rng_digest()}

    def train_watched(self, steps: range, eyes: "Eyes") -> dict[str, str]:
        """The same, with everything looked at as often as can be."""
        loss_of = eyes.watch.audit.watch(self.model, lambda model, it: model(it).square().mean())
        for step in steps:
            eyes.watch.begin(step + 1)
            eyes.pace.start()
            with self.autocast():
                loss = loss_of(self._batch(step))
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            eyes.observed.add(loss, 8)
            eyes.watch.health.clip(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            eyes.watch.finish(step + 1, last=False)
            eyes.watch.vouch(Tier.STORAGE)
            eyes.pace.stop()
            eyes.observed.take(step + 1)
        return self.protected.digests() | {"rng": exactness.rng_digest()}

    def _batch(self, step: int) -> Tensor:
        seeded = torch.Generator().manual_seed(1000 * step + self.rank)
        return torch.randn(8, 16, generator=seeded)

    def _loss_of(self, batch: Tensor) -> Tensor:
        with self.autocast():
            loss: Tensor = self.model(batch).square().mean()
        return loss


class Eyes:
    """All that a job looks at its training with."""

    def __init__(self, run: Run, folder: str) -> None:
        run_dir = RunDir.at(folder)
        run_dir.create()
        self.pace, self.observed = Pace(), Observed(late=False)
        settings = Settings(
            health_every_steps=1,
            replicas_every_steps=1,
            audit_every_steps=2,
            on_replica_mismatch="fail",
        )
        self.watch = Watch(
            Voice(run_dir, "run", run.rank, 1),
            self.observed,
            self.pace,
            run.protected,
            settings,
            run.rank,
            dist.get_world_size(),
            Rollback(run_dir, 1),
            late=False,
        )
        self.pace.watch(run.model)
        self.pace.watch_optimizer(run.optimizer)
        self.watch.watch_optimizer(run.optimizer)
        self.watch.start(0)


def differing(rank: int, cured: bool, options: dict[str, Any]) -> list[str]:
    """Components of a run resumed twice, after steps 2 and 4 of 6, that differ from one that was not."""
    went_on = Run(rank, cured, options).train(range(6))
    run = Run(rank, cured, options)
    for start in (2, 4):
        run.train(range(start - 2, start))
        saved = copy.deepcopy((run.protected.shared(), run.protected.own()))
        rng = exactness.capture_rng()
        run = Run(rank, cured, options)
        run.protected.restore(*saved)
        exactness.restore_rng(rng)
    resumed = run.train(range(4, 6))
    return [name for name in went_on if went_on[name] != resumed[name]]


def divided(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """A communication hook of a user's own, whose sums are other bits than DDP's."""
    buffer = bucket.buffer().div_(dist.get_world_size())
    work: Any = dist.all_reduce(buffer, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])  # type: ignore[no-any-return]


def signalled(rank: int) -> dict[str, list[str]]:
    """Components that differ with all signals on, and rank 0 counting operations."""
    found = {}
    for name, hook, half in (
        ("ddp", None, False),
        ("hook", divided, False),
        ("autocast", None, True),
    ):
        plain, run = (Run(rank, True, LAYOUTS["small buckets"], half) for _ in range(2))
        if hook is not None:
            for one in (plain, run):
                one.model.register_comm_hook(None, hook)
        exactness.seed_all(0, rank)
        off = plain.train(range(6))
        exactness.seed_all(0, rank)
        if rank == 0:
            forward = partial(run.model, torch.zeros(4, 16))
            flops.count(lambda of=forward: of().sum(), [run.model])  # type: ignore[misc]
        with tempfile.TemporaryDirectory() as folder:
            watched = run.train_watched(range(6), Eyes(run, folder))
        found[name] = [part for part in off if off[part] != watched[part]]
    return found


def state(model: nn.Module) -> dict[str, str]:
    return {
        "parameters": digest(dict(model.named_parameters())),
        "buffers": digest(dict(model.named_buffers())),
        "gradients": str([parameter.grad for parameter in model.parameters()]),
        "attributes": str(sorted(vars(model))),
        "rng": exactness.rng_digest(),
    }


def touched(rank: int) -> dict[str, Any]:
    """What settling changes besides the buckets, and which hooks run in it and after it."""
    model = Net()
    fired: list[str] = []
    model.register_forward_hook(lambda *_: fired.append("forward"))
    weight: Any = model.head.weight  # torch leaves the methods that follow without types
    weight.register_hook(lambda _: fired.append("gradient"))
    weight.register_post_accumulate_grad_hook(lambda _: fired.append("accumulated"))
    ddp: Any = DistributedDataParallel(model)
    model.get_buffer("norm.running_mean").fill_(rank)  # a rank's own, as a resume leaves them
    model.first.weight.grad = torch.full_like(model.first.weight, 5.0)
    before = state(model)
    exactness.settle_buckets(ddp)
    after = state(model)
    during = list(fired)
    ddp(torch.randn(4, 16)).sum().backward()
    return {
        "changed": [name for name in before if before[name] != after[name]],
        "hooks during": during,
        "hooks afterwards": sorted(fired),
        "settled": ddp._has_rebuilt_buckets,
        "synchronises buffers": ddp.will_sync_module_buffers(),
    }


def odd(rank: int) -> dict[str, Any]:
    model = Odd()
    ddp = DistributedDataParallel(model)
    exactness.settle_buckets(ddp)
    return {
        "settled": ddp._has_rebuilt_buckets,
        "gradients": [name for name, p in model.named_parameters() if p.grad is not None],
    }


def failing(rank: int) -> dict[str, Any]:
    """What is left of a settling that was cut short by an exception."""
    model = Net()
    weight: Any = model.head.weight
    handle = weight.register_hook(lambda _: None)
    ddp: Any = DistributedDataParallel(model)
    term, buckets._term = buckets._term, _out_of_memory
    try:
        exactness.settle_buckets(ddp)
    except MemoryError as error:
        return {
            "raised": str(error),
            "model back": ddp.module is model,
            "hooks back": handle.id in weight._backward_hooks,
            "synchronises buffers": ddp.will_sync_module_buffers(),
        }
    finally:
        buckets._term = term
    return {}


def _out_of_memory(parameter: nn.Parameter, sparse: bool) -> Tensor:
    raise MemoryError("no room")


def hooked(rank: int) -> bool:
    """A communication hook is taken after settling, and called."""
    ddp = DistributedDataParallel(nn.Linear(3, 3))
    exactness.settle_buckets(ddp)
    calls: list[int] = []

    def count(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        calls.append(bucket.index())
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    ddp.register_comm_hook(None, count)
    ddp(torch.ones(2, 3)).sum().backward()
    return calls == [0]


def accumulated(rank: int) -> dict[str, bool]:
    """Whether ranks hold equal gradients after a first micro-batch under `no_sync`, and after another."""
    ddp = DistributedDataParallel(nn.Linear(3, 3))
    exactness.settle_buckets(ddp)

    def equal() -> bool:
        gradient = ddp.module.weight.grad
        assert gradient is not None
        gathered = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, gradient)
        return all(torch.equal(one, gathered[0]) for one in gathered)

    batch = torch.full((2, 3), float(rank))
    with ddp.no_sync():
        ddp(batch).sum().backward()
    first = equal()
    ddp(batch).sum().backward()
    return {"after the first": first, "after the last": equal()}


def refused(model: nn.Module, **options: Any) -> str:
    try:
        exactness.settle_buckets(DistributedDataParallel(model, **options))
    except ValueError as error:
        return str(error)
    return "taken"


def stepping_in_backward() -> nn.Module:
    model = nn.Linear(2, 2)
    for parameter in model.parameters():
        parameter._in_backward_optimizers = []  # type: ignore[attr-defined]  # as torch marks them
    return model


def measured(rank: int, world_size: int, store: Path) -> dict[str, Any]:
    exactness.pin(1, "cpu")
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(store), world_size),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=30),
    )
    found: dict[str, Any] = {
        f"{name}, {'cured' if cured else 'uncured'}": differing(rank, cured, options)
        for name, options in LAYOUTS.items()
        for cured in (True, False)
    }
    if world_size == 3:
        found |= {
            "views, cured": differing(rank, True, VIEWS),
            "unused, cured": differing(rank, True, {"find_unused_parameters": True}),
            "touched": touched(rank),
            "odd": odd(rank),
            "failing": failing(rank),
            "hooked": hooked(rank),
            "accumulated": accumulated(rank),
            "signalled": signalled(rank),
            "names": sorted(Run(rank, True, {}).protected.shared()["model"]),
            "static graph": refused(nn.Linear(2, 2), static_graph=True),
            "step in backward": refused(stepping_in_backward()),
        }
    dist.destroy_process_group()
    return found


def forked(world_size: int, folder: Path) -> list[dict[str, Any]]:
    """What each of `world_size` ranks measured."""
    children = []
    for rank in range(world_size):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                answer = measured(rank, world_size, folder / f"store-{world_size}")
                (folder / f"{world_size}-{rank}").write_text(json.dumps(answer))
                code = 0
            except Exception:  # noqa: BLE001  # a child of ours must not go on as the parent
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * world_size, codes
    return [json.loads((folder / f"{world_size}-{r}").read_text()) for r in range(world_size)]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = {str(world_size): forked(world_size, Path(folder)) for world_size in WORLD_SIZES}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
