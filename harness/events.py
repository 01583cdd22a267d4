"""What can happen in a run: one frozen value per event, and the entry that carries it.

An event says what *changed*, at one instant. Trainer, launcher, injector and simulator all write
these and nothing else; every counter, report and verdict is a fold over them (`timeline.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

SCHEMA = 1
"""Version of the log's form. Readers accept this one and all older ones."""


class Tier(StrEnum):
    """Where a copy of the training state lives."""

    MEMORY = "memory"
    STORAGE = "storage"


class Cause(StrEnum):
    """Why an attempt ended, as the launcher could tell."""

    SIGNAL = "signal"
    EXIT = "exit"
    EXCEPTION = "exception"
    OOM = "oom"
    HANG = "hang"
    NODE_LOSS = "node_loss"
    PREEMPTION = "preemption"
    NONFINITE = "nonfinite"
    CORRUPTION = "corruption"
    HELPER = "helper"


class Rejection(StrEnum):
    """Why a checkpoint was walked past on restore."""

    CHECKSUM = "checksum"
    MISSING = "missing"
    TORN = "torn"
    UNREADABLE = "unreadable"


class Place(StrEnum):
    """Where a number that is none was found."""

    LOSS = "loss"
    GRADIENT = "gradient"


class Reaction(StrEnum):
    """What follows a finding about the health of training."""

    FAIL = "fail"
    """The attempt ends, and the run goes on from a checkpoint."""
    SKIP = "skip"
    """No rank takes the optimizer's step."""
    REPORT = "report"
    """It is told, and training goes on."""


class Outcome(StrEnum):
    """How a run (one life of its launcher) ended."""

    FINISHED = "finished"
    FAILED = "failed"
    DRAINED = "drained"
    INTERRUPTED = "interrupted"


EXIT_CODES: Mapping[Outcome, int] = {
    Outcome.FINISHED: 0,
    Outcome.FAILED: 1,
    Outcome.DRAINED: 75,
    Outcome.INTERRUPTED: 130,
}
"""Exit status of the launcher by outcome; 2 is kept for mistakes in how it was called."""


@dataclass(frozen=True, slots=True)
class Event:
    """Base of everything that can happen."""


# ── the launcher ────────────────────────────────────────────────────────────────────────────────
# Under plain `torchrun` rank 0 writes the first two.


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """A launcher took up the run: for the first time, or again after it was down."""

    run_id: str
    world_size: int
    tool: str = "harness"
    """Who launches: `harness`, `torchrun` or `simulate`."""


@dataclass(frozen=True, slots=True)
class AttemptStarted(Event):
    """A new attempt begins; its number is the entry's. Every start and every rollback is one."""

    world_size: int


@dataclass(frozen=True, slots=True)
class RanksSpawned(Event):
    """The attempt's rank processes exist."""

    world_size: int
    warm: bool
    """Forked from a parent that had imported torch already."""
    reason: str = ""
    """Why they started cold, where they did."""


@dataclass(frozen=True, slots=True)
class FailureDetected(Event):
    """The attempt is lost; whatever its ranks still write changes nothing."""

    rank: int | None
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True)
class StacksDumped(Event):
    """What every rank was doing was written to the incident's folder."""

    path: str


@dataclass(frozen=True, slots=True)
class RanksStopped(Event):
    """No process of the attempt lives any more."""


@dataclass(frozen=True, slots=True)
class HelperRestarted(Event):
    """A process that serves the job had died, and there is another in its place."""

    name: str
    """`saver`, `exporter`, `injector` or `fork server`."""
    reason: str
    """What the former one died of."""


@dataclass(frozen=True, slots=True)
class DrainRequested(Event):
    """The machine is wanted back: save at the next step boundary and leave."""

    grace_s: float


@dataclass(frozen=True, slots=True)
class RunFinished(Event):
    """The launcher leaves the run, for good or until it is called again."""

    outcome: Outcome
    reason: str = ""


# ── rank 0, for the job ─────────────────────────────────────────────────────────────────────────


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


# ── every rank ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class RankJoined(Event):
    """A rank registered itself and is about to join the group."""

    pid: int
    start_ticks: int
    """Start of the process in clock ticks since boot (field 22 of /proc/PID/stat)."""
    local_rank: int | None = None
    node: str = ""
    """Name of its machine."""
    gpu_uuid: str = ""
    """Of its device, as NVIDIA's tools print it; empty on CPU."""


@dataclass(frozen=True, slots=True)
class StepTimed(Event):
    """How this rank's part of a step went; about one a second where steps are short."""

    step: int
    own_ns: int
    """Its own part: batches, forward and backward, the optimizer, the loop's own code."""
    wait_ns: int
    """From its last gradient until its optimizer began: waiting for the others, and the reduction."""
    data_ns: int = 0
    """Of its own part: waiting for its batches."""
    compute_ns: int = 0
    """Of its own part: forward, backward and the optimizer."""
    steps: int = 1
    """Of how many steps, up to this one, these are the means."""


@dataclass(frozen=True, slots=True)
class StateDigested(Event):
    """Digests of this rank's whole state after `step` steps, by component, where asked for."""

    step: int
    components: Mapping[str, str] = field(default_factory=dict)
    """Component name (`model`, `optimizer`, `rng`, …, `samples`, `loss`) to a hex digest."""


@dataclass(frozen=True, slots=True)
class NonfiniteFound(Event):
    """NaN or an infinity in `step`: in this rank's loss, or (told by rank 0) in the reduced gradient."""

    step: int
    place: Place
    reaction: Reaction


# ── whoever saves ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class SaveCommitted(Event):
    """The state of `step` is durable and may be resumed from."""

    step: int
    tier: Tier
    bytes: int


@dataclass(frozen=True, slots=True)
class SaveFailed(Event):
    """The state of `step` will not become durable; training goes on without it."""

    step: int
    tier: Tier
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointDeleted(Event):
    """Retention removed a checkpoint."""

    step: int
    saved_by: int


# ── the injector ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class FaultDeferred(Event):
    """A fault fell due while its target was down, and waits for it."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class FaultInjected(Event):
    """Written *before* the fault acts, so that no fault is ever unlogged."""

    id: str
    kind: str
    target: str
    """What it hits, as in the tape: `rank 3`, `node 0`, `store`."""


@dataclass(frozen=True, slots=True)
class FaultConfirmed(Event):
    """The fault was seen to have taken effect."""

    id: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class FaultLifted(Event):
    """What the fault had done was undone."""

    id: str


@dataclass(frozen=True, slots=True)
class FaultSkipped(Event):
    """The fault will not happen: the run ended first, or its target refused to be one."""

    id: str
    reason: str


# ── what a newer writer wrote ───────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Unknown(Event):
    """An event of a later schema, kept as it was; it changes nothing in any phase."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of every event file, and again whenever another process goes on with it."""

    schema: int
    run_id: str
    writer: str
    """`launcher-0`, `rank-3`, `saver-0`, `injector`."""
    host: str
    boot_id: str
    pid: int
    monotonic_ns: int
    """CLOCK_MONOTONIC and …"""
    wall_ns: int
    """… the Unix clock, read at one instant."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An event with its instant, the attempt that it belongs to, and its place in its file."""

    at_ns: int
    """In a file: the writer's CLOCK_MONOTONIC. Once read: Unix time on the run's one axis."""
    attempt: int
    sequence: int
    """Counts from 0 in each writer's life; breaks ties between entries of one writer."""
    event: Event
    writer: str = ""


@cache
def rank_of(writer: str) -> int | None:
    """The rank that writes as `writer`; None for a launcher and the like."""
    name, _, number = writer.partition("-")
    return int(number) if name == "rank" and number.isdecimal() and len(number) < 10 else None


def event_types() -> dict[str, type[Event]]:
    """Every known event by its name in the log."""
    # By name: each slotted dataclass leaves its unslotted first form among the subclasses for a while.
    kinds = {kind.__name__: kind for kind in Event.__subclasses__()}
    return {name: kind for name, kind in kinds.items() if name != Unknown.__name__}
