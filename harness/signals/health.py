"""Whether training is healthy: gradient norms, clipping, updates; NaN and Inf before they are kept.

Nothing here changes a bit. What is only told is read one step late on an accelerator; what decides
whether the optimizer steps, at once.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.optim import Optimizer

from harness.events import HealthObserved, LossSpiked, NonfiniteFound, Place, Reaction
from harness.observed import Observed
from harness.optimizer import Names
from harness.settings import Settings
from harness.signals.late import Numbers, numbers
from harness.signals.lengths import not_finite
from harness.signals.rollback import Rollback
from harness.signals.spikes import Limits, Losses
from harness.signals.unsound import NonfiniteError, NonfiniteGradientError
from harness.signals.updates import Ratios, Updates
from harness.voice import Voice

_NO_LOSS = torch.zeros(())


@dataclass(frozen=True, slots=True)
class _Taken:
    """What one step came to, on its way from the device."""

    step: int
    stepped: bool
    """An optimizer stepped by these gradients, and no scaler of gradients watched over it."""
    observed: bool
    """The loop gave a loss."""
    told: bool
    """What there is to find was found and told already."""
    numbers: Numbers
    """The loss (0 where none was observed), then the norms."""
    lines: list[float]
    """What gradients were clipped to, in the order of the norms; others were not clipped."""
    ratios: Ratios | None
    sampled: bool


class Health:
    """One rank's eye on its training. `observed` holds the loss of the step under way.

    `rollback` is what follows a loss that jumps; without it that is told, and nothing follows.
    `before_failing` is called before an error ends the attempt for what is not finite.
    """

    def __init__(
        self,
        voice: Voice,
        observed: Observed,
        settings: Settings,
        late: bool,
        world_size: int,
        rollback: Rollback | None = None,
        before_failing: Callable[[], None] = lambda: None,
    ) -> None:
        self._voice = voice
        self._observed = observed
        self._reaction = Reaction(settings.on_nonfinite)
        self._every = settings.health_every_steps
        self._watched = [name.strip() for name in settings.watch_tensors.split(",") if name.strip()]
        self._late = late
        self._world_size = world_size
        self._updates: Updates | None = None
        self._pending: _Taken | None = None
        self._clips = self._clipped = 0
        self._limits = Limits()
        self._losses = Losses(self._limits)
        self._rollback = rollback
        self._before_failing = before_failing
        self._finished = 0
        self.begin(0)

    def watch_optimizer(self, optimizer: Optimizer) -> None:
        """Look at the gradients that `optimizer` gets, and at what it makes of them."""
        optimizer.register_step_pre_hook(lambda *_: self._before(optimizer))
        optimizer.register_step_post_hook(lambda *_: self._after(optimizer))

    def name(self, names: Names) -> None:
        """Training begins, with these parameters. Raises `ValueError` for `watch_tensors` not of them."""
        self._updates = Updates(names, self._watched)

    def resume(self, step: int) -> None:
        """Training goes on after `step` steps."""
        if self._rollback is not None and self._voice.leads:
            self._losses.remember(self._rollback.losses(step))

    def begin(self, step: int) -> None:
        """Step number `step` begins."""
        self._step = step
        self._norms: list[Tensor] = []
        self._lines: list[float] = []
        self._covered: set[Tensor] = set()
        self._stepped = self._told = False
        self._sampled = bool(self._every) and step % self._every == 0

    @property
    def reads(self) -> bool:
        """In the step under way norms and ratios are read."""
        return self._sampled

    def clip(
        self, parameters: Tensor | Iterable[Tensor], max_norm: float, **options: Any
    ) -> Tensor:
        """`torch.nn.utils.clip_grad_norm_` itself, with its norm noted."""
        clipped = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        norm = clip_grad_norm_(clipped, max_norm, **options)
        self._norms.insert(len(self._lines), norm.detach())
        self._lines.append(float(max_norm))
        self._covered.update(clipped)
        return norm

    def finish(self, step: int, last: bool) -> None:
        """Step number `step` is done: tell of the newest one that can be read without waiting.

        Raises `NonfiniteError` where that ends the attempt.
        """
        self._finished = step
        now = self._take(step)
        before, self._pending = self._pending, now
        if before is not None:
            self._tell(before)
        if last or not self._late:
            self.settle()

    def settle(self) -> None:
        """Read what has not been read. Raises `NonfiniteError` like `finish`."""
        taken, self._pending = self._pending, None
        if taken is not None:
            self._tell(taken)

    def vouch(self, weights: Names) -> None:
        """Before a save: what was found is told, and `weights`, this rank's part of them, are finite.

        The gradient may be finite and an optimizer make NaN of it, as of 0 by 0. Raises `NonfiniteError`
        where that ends the attempt: `skip` cannot leave out a step that was taken.
        """
        self.settle()
        bad = [list(weights.values())[place] for place in not_finite(list(weights))]
        if not bad:
            return
        reaction = Reaction.REPORT if self._reaction is Reaction.REPORT else Reaction.FAIL
        self._voice.write(NonfiniteFound(self._finished, Place.WEIGHTS, reaction))
        if reaction is Reaction.FAIL:
            self._before_failing()
            raise NonfiniteError(
                f"the weights after step {self._finished} are not finite, and not saved:"
                f" {', '.join(bad[:4])}{', …' if len(bad) > 4 else ''}; on_nonfinite = report goes on"
            )

    # ── around an optimizer's step ──────────────────────────────────────────────────────────

    def _before(self, optimizer: Optimizer) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None and p not in self._covered]
        if gradients:
            self._norms.append(get_total_norm([_values(gradient) for gradient in gradients]))
        # A scaler that leaves the step to a fused optimizer expects infinities, and skips them.
        self._stepped = getattr(optimizer, "found_inf", None) is None
        if self._stepped:
            self._judge(parameters)
        if self._sampled and self._updates is not None and self._voice.leads:
            self._updates.before(optimizer)

    def _judge(self, parameters: list[Tensor]) -> None:
        """Find what must not be kept before the optimizer makes anything of it."""
        skips = self._reaction is Reaction.SKIP
        if self._reaction is Reaction.REPORT or (self._late and not skips):
            return
        loss, gradient = self._bad()
        self._find(self._step, loss, gradient)
        if skips and self._any_rank(loss or gradient):
            for parameter in parameters:
                parameter.grad = None
            self._told = True

    def _bad(self) -> tuple[bool, bool]:
        """Whether this rank's loss so far, and whether the gradient, is not finite."""
        loss, *norms = self._numbers().read()
        return not math.isfinite(loss), not all(map(math.isfinite, norms))

    def _any_rank(self, found: bool) -> bool:
        """Agree, since a loss is one rank's own and a step is everyone's."""
        if self._world_size == 1:
            return found
        flag = torch.tensor([int(found)], device=self._norms[0].device if self._norms else None)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag.item())

    def _after(self, optimizer: Optimizer) -> None:
        if self._sampled and self._updates is not None:
            self._updates.after(optimizer)

    # ── what is told ────────────────────────────────────────────────────────────────────────

    def _numbers(self) -> Numbers:
        loss = self._observed.mean()
        return numbers([_NO_LOSS if loss is None else loss, *self._norms])

    def _take(self, step: int) -> _Taken:
        ratios = None if self._updates is None else self._updates.taken()
        return _Taken(
            step=step,
            stepped=self._stepped,
            observed=self._observed.mean() is not None,
            told=self._told,
            numbers=self._numbers(),
            lines=self._lines,
            ratios=ratios,
            sampled=self._sampled,
        )

    def _tell(self, taken: _Taken) -> None:
        loss, *norms = taken.numbers.read()
        self._clips += bool(taken.lines)
        self._clipped += any(norm > line for norm, line in zip(norms, taken.lines, strict=False))
        if taken.sampled:
            self._voice.tell(self._observation(taken, norms))
            self._clips = self._clipped = 0
        if taken.observed and self._voice.leads:
            self._look_for_spike(taken.step, loss)
        if not taken.told:
            gradient = taken.stepped and not all(map(math.isfinite, norms))
            self._find(taken.step, not math.isfinite(loss), gradient)

    def _look_for_spike(self, step: int, loss: float) -> None:
        found = self._losses.add(loss)
        if found is not None:
            self._voice.tell(LossSpiked(step, found.loss, found.usual, found.deviations))
            if self._rollback is not None:
                usual = self._losses.usual()
                self._rollback.go_back(step, found, usual, self._limits.in_a_row)

    def _observation(self, taken: _Taken, norms: list[float]) -> HealthObserved:
        return HealthObserved(
            step=taken.step,
            grad_norm=math.hypot(*norms) if norms else None,
            clip_norm=min(taken.lines, default=None),
            clips=self._clips,
            clipped=self._clipped,
            update_to_weight={} if taken.ratios is None else taken.ratios.read(),
        )

    def _find(self, step: int, loss: bool, gradient: bool) -> None:
        """Tell of what is not finite; raise where that ends the attempt."""
        if loss:
            self._voice.write(NonfiniteFound(step, Place.LOSS, self._reaction))
        if gradient:
            self._voice.tell(NonfiniteFound(step, Place.GRADIENT, self._reaction))
        if self._reaction is not Reaction.FAIL:
            return
        if loss or gradient:
            self._before_failing()
        way_out = "on_nonfinite = skip or report goes on instead"
        if loss:
            raise NonfiniteError(f"the loss of step {step} is not finite; {way_out}")
        if gradient:
            raise NonfiniteGradientError(f"the gradient of step {step} is not finite; {way_out}")


def _values(gradient: Tensor) -> Tensor:
    return gradient._values() if gradient.is_sparse else gradient
