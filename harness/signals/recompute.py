"""The recompute audit: each rank makes its neighbour's gradient once more, and all compare.

A bit that flips in a gradient before the reduction makes all replicas wrong alike, so that nothing
else can see it. An audit costs a forward and a backward pass of one micro-batch; streams, buffers
and gradients are afterwards as they were.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from harness import exactness
from harness.events import GradientsAudited, Reaction
from harness.settings import Settings
from harness.signals.audit import arbiter, audited, differing, settle
from harness.signals.blocks import ALL, grouped
from harness.signals.hashing import hashed
from harness.signals.majority import Verdict
from harness.signals.travel import arrived, departing
from harness.signals.unsound import corrupt
from harness.voice import Voice

LOG = logging.getLogger("harness")
LossOf = Callable[[Any, Any], Tensor]
"""Of a model and a batch: the loss, and exactly that on which the loop calls `backward`."""


@dataclass(slots=True)
class Case:
    """All that decides a gradient beside the weights."""

    batch: Any
    rng: dict[str, Any]
    autocast: dict[str, tuple[bool, torch.dtype]]
    """By kind of device: whether the loop has it on around the loss, and in which dtype."""
    buffers: list[Tensor] | None = None
    """As the model's own forward pass found them."""


class Audit:
    """One rank's part in auditing."""

    def __init__(self, voice: Voice, settings: Settings, rank: int, world_size: int) -> None:
        self._voice = voice
        self._every = settings.audit_every_steps if world_size > 1 else 0
        self._fails = settings.on_audit_mismatch == Reaction.FAIL
        self._rank = rank
        self._world_size = world_size
        self._module: nn.Module | None = None
        self.begin(0)

    def watch(self, model: DistributedDataParallel, loss_of: LossOf) -> Callable[[Any], Tensor]:
        """`loss_of` of `model`, as a function of a batch that can be audited."""
        if self._every:
            self._module, self._loss_of = model.module, loss_of
            names = {f"model.{n}": p for n, p in model.module.named_parameters() if p.requires_grad}
            self._parameters = list(names.values())
            groups = grouped(list(names))
            self._groups = {name: places for name, places in groups.items() if name != ALL}
            model.module.register_forward_pre_hook(lambda *_: self._enter())
            for parameter in self._parameters:
                parameter.register_post_accumulate_grad_hook(self._note)

        def loss(batch: Any) -> Tensor:
            self._open(batch)
            return loss_of(model, batch)

        return loss

    def begin(self, step: int) -> None:
        """Step number `step` begins."""
        self._step = step
        self._due = bool(self._every) and step % self._every == 0
        self._case: Case | None = None
        self._own: dict[Tensor, Tensor] = {}

    @property
    def is_due(self) -> bool:
        """The step under way is to be audited, and has not been."""
        return self._due and self._case is not None

    def before_update(self) -> None:
        """The gradients are reduced, and no weight has changed. Raises `CorruptionError`."""
        case, self._case = self._case, None
        if case is None:
            return
        self._due = False
        own = self._table(self._digest([self._own.get(p) for p in self._parameters]))
        theirs = self._table(self._recompute(self._exchange(case)))
        third = None
        if (wrong := differing(own, theirs)) and self._world_size > 2:
            third = self._table(self._arbitrate(case, wrong))
        self._tell(settle(tuple(self._groups), own, theirs, third))

    # ── the loop's own gradient ─────────────────────────────────────────────────────────────

    def _open(self, batch: Any) -> None:
        """The first micro-batch of a step that is audited: keep what decides its gradient."""
        if not self._due or self._case is not None:
            return
        if any(p.grad is not None and bool(p.grad.any()) for p in self._parameters):
            raise ValueError(
                f"step {self._step} is to be audited and begins with gradients of another:"
                " call optimizer.zero_grad() before it"
            )
        kinds = {"cpu", self._parameters[0].device.type}
        self._case = Case(batch, exactness.capture_rng(), {kind: _autocast(kind) for kind in kinds})

    def _enter(self) -> None:
        case = self._case
        if case is not None and case.buffers is None and self._module is not None:
            case.buffers = [buffer.detach().clone() for buffer in self._module.buffers()]

    def _note(self, parameter: Tensor) -> None:
        if self._case is not None and parameter not in self._own and parameter.grad is not None:
            self._own[parameter] = _digest_of(parameter.grad)

    # ── another's ───────────────────────────────────────────────────────────────────────────

    def _exchange(self, case: Case) -> Case:
        """Give `case` to the rank that audits it, and take that of the one to be audited here."""
        package, box = [departing(case)], [None]
        auditor = (self._rank - 1) % self._world_size
        # Of a ring in which all send first, all wait.
        for sends in (self._rank % 2 == 0, self._rank % 2 == 1):
            if sends:
                dist.send_object_list(package, auditor)
            else:
                dist.recv_object_list(box, audited(self._rank, self._world_size))
        return self._taken(box[0])

    def _arbitrate(self, case: Case, auditors: list[int]) -> Tensor:
        """Compute a third time what two ranks differ about, if this rank is asked to."""
        packages: list[Any] = [None] * self._world_size
        dist.all_gather_object(packages, departing(case))
        for auditor in auditors:
            if self._rank == arbiter(auditor, self._world_size):
                return self._recompute(self._taken(packages[audited(auditor, self._world_size)]))
        return self._digest([None] * len(self._parameters))

    def _taken(self, package: Any) -> Case:
        case: Case = arrived(package, self._parameters[0].device)
        return case

    def _recompute(self, case: Case) -> Tensor:
        """The numbers of the gradient of `case`, made here; leaves everything as it was."""
        assert self._module is not None
        assert case.buffers is not None
        buffers = list(self._module.buffers())
        before = exactness.capture_rng(), [buffer.detach().clone() for buffer in buffers]
        try:
            _put(case.rng, buffers, case.buffers)
            with ExitStack() as around:
                for kind, (enabled, dtype) in case.autocast.items():
                    around.enter_context(torch.autocast(kind, dtype, enabled))
                loss = self._loss_of(self._module, case.batch)
            gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        finally:
            _put(before[0], buffers, before[1])
        return self._digest([None if it is None else _digest_of(it) for it in gradients])

    # ── what is compared, and told ──────────────────────────────────────────────────────────

    def _digest(self, digests: list[Tensor | None]) -> Tensor:
        """One number for each group, of those of its parameters; 0 for one without a gradient."""
        none = torch.zeros((), dtype=torch.int64, device=self._parameters[0].device)
        filled = torch.stack([none if digest is None else digest for digest in digests])
        return torch.stack([hashed([filled[list(places)]]) for places in self._groups.values()])

    def _table(self, mine: Tensor) -> list[list[int]]:
        rows = [torch.empty_like(mine) for _ in range(self._world_size)]
        dist.all_gather(rows, mine)
        return [[int(number) for number in row.tolist()] for row in rows]

    def _tell(self, verdict: Verdict) -> None:
        self._voice.tell(GradientsAudited(self._step, verdict.groups, verdict.ranks))
        if not verdict.groups:
            return
        said = words(self._step, verdict)
        if self._fails:
            raise corrupt(said, self._rank, verdict.ranks)
        if self._voice.leads:
            LOG.warning("harness: %s", said)


def words(step: int, verdict: Verdict) -> str:
    """What was found, for people."""
    if verdict.is_ambiguous:
        return (
            f"two ranks get different gradients from one batch of step {step} in {verdict.blocks}, and no"
            " majority says which is right"
        )
    return (
        f"rank {verdict.odd} got another gradient in step {step} than others from its batch:"
        f" {verdict.blocks}"
    )


def _digest_of(gradient: Tensor) -> Tensor:
    dense = gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()
    return hashed([dense + 0])  # added to zeros, -0.0 becomes 0.0: so it shall do here


def _autocast(kind: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


def _put(rng: dict[str, Any], buffers: list[Tensor], values: list[Tensor]) -> None:
    exactness.restore_rng(rng)
    for buffer, value in zip(buffers, values, strict=True):
        buffer.detach().copy_(value)
