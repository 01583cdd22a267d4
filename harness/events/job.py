"""What rank 0 says for the job: the way back to a state, steps, saves, the health of training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.events.entry import Event
from harness.events.words import Rejection, Tier


@dataclass(frozen=True, slots=True)
class GroupFormed(Event):
    """Every rank of the attempt is in the process group."""

    world_size: int


@dataclass(frozen=True, slots=True)
class RestoreStarted(Event):
    """Rank 0 begins to look for a state to resume from."""


@dataclass(frozen=True, slots=True)
class CheckpointRejected(Event):
    """A checkpoint was walked past; the next older one is tried."""

    step: int
    saved_by: int
    """The attempt that had saved it."""
    rejection: Rejection
    reason: str


@dataclass(frozen=True, slots=True)
class StateFound(Event):
    """All ranks have read and verified the state to resume from; 0 and no tier: there is none."""

    step: int
    tier: Tier | None


@dataclass(frozen=True, slots=True)
class TrainingResumed(Event):
    """The state of `step` finished steps is in place; 0 and no tier is a start from nothing."""

    step: int
    tier: Tier | None
    saved_by: int | None = None
    """The attempt that had saved the state."""
    total_steps: int | None = None
    """The step that the loop is to end at."""


@dataclass(frozen=True, slots=True)
class StepFinished(Event):
    """Step number `step` (the first is 1) is done on rank 0: optimizer stepped, batches consumed."""

    step: int
    samples_start: int
    """Position in the endless sample sequence before the step, counted over all ranks."""
    samples_end: int
    samples_digest: str = ""
    """xxh3-64 of the sample ids that rank 0 really used in this step, as little-endian int64."""
    tokens: int = 0
    """Over all ranks."""
    loss: float | None = None
    """Mean over rank 0's micro-batches of step `loss_step`."""
    loss_step: int | None = None
    """Equal to `step` on CPU; one less on an accelerator, where reading at once would stall it."""


@dataclass(frozen=True, slots=True)
class ArithmeticKnown(Event):
    """What training takes of a device, and what that could do; once in an attempt, where it is known."""

    formula_flops: float
    """For a token: six for each trainable parameter."""
    counted_flops: float | None = None
    """For a token, forward and backward, by torch's counter where the script asked for it."""
    peak_flops: float | None = None
    """A second of one device, dense, in `dtype`."""
    peak_source: str = ""
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class EvaluationStarted(Event):
    """Training pauses to score held-out data."""

    step: int


@dataclass(frozen=True, slots=True)
class EvaluationFinished(Event):
    """Held-out data scored; training goes on."""

    step: int
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class SaveStarted(Event):
    """Training stops for the state after `step` finished steps to be copied."""

    step: int
    tier: Tier
    rest: bool = False
    """A copy that was begun already, and overlapped with training, is waited for."""


@dataclass(frozen=True, slots=True)
class SaveUnblocked(Event):
    """The copy is taken and training goes on; the save is not durable yet."""

    step: int
    tier: Tier


@dataclass(frozen=True, slots=True)
class IntervalChosen(Event):
    """How often the state is saved to `tier` from here on, and why."""

    tier: Tier
    steps: int
    seconds: float
    """The same at the pace of then."""
    optimal_s: float | None
    """What would be best without bounds; None where nothing was measured, or seconds were asked for."""
    inputs: Mapping[str, float] = field(default_factory=dict)
    """What the choice rests on, by name."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TrainingFinished(Event):
    """The last step is done; what follows is the last save's commit and the tear-down."""

    step: int


@dataclass(frozen=True, slots=True)
class HealthObserved(Event):
    """How training fared in `step`, and how often gradients were clipped since the last of these."""

    step: int
    grad_norm: float | None = None
    """Over all parameters and ranks, before clipping; None if no optimizer stepped."""
    clip_norm: float | None = None
    """What gradients were clipped to; None where `job.clip` was not called."""
    clips: int = 0
    """Steps with `job.clip` since the last `HealthObserved` of this attempt …"""
    clipped: int = 0
    """… and those of them whose gradient was longer than that."""
    update_to_weight: Mapping[str, float] = field(default_factory=dict)
    """Length of the update by that of the weights: of `all`, by block, and of each tensor asked for."""


@dataclass(frozen=True, slots=True)
class LossSpiked(Event):
    """Rank 0's loss has jumped, and not for one step alone; told once, at the second."""

    step: int
    loss: float
    usual: float
    """The median of those before it."""
    deviations: float
    """How far above that, in robust standard deviations of those before it."""


@dataclass(frozen=True, slots=True)
class GradientsAudited(Event):
    """Before the optimizer of `step`, each rank computed the gradient of another's batch again."""

    step: int
    groups: Sequence[str] = ()
    """Blocks of the model in which two ranks got something else; none where all is well."""
    ranks: Sequence[int] = ()
    """Those that stood alone against two others; none where that names nobody."""


@dataclass(frozen=True, slots=True)
class ReplicasCompared(Event):
    """The weights after `step`, which DDP keeps equal, were compared between all ranks."""

    step: int
    groups: Sequence[str] = ()
    """Blocks of the model in which not all ranks are equal; none where all is well."""
    ranks: Sequence[int] = ()
    """Those that differ from a majority; none where there is none that says which is right."""
