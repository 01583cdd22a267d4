"""The names of all metrics, what they mean, and nothing else. A name stands here or nowhere.

Base units, `_total` on counters, and labels that no restart changes: a rank, never a pid or an attempt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

COMMON = ("job_name", "run_id")
"""Labels of every metric: the run directory's name, and the run's own."""
PREFIX = "harness_"
USUAL_PORT = 9464
"""Where OpenTelemetry's Prometheus exporters listen by default; ours takes it if it is free."""


class Kind(StrEnum):
    """What Prometheus takes a metric for."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric, as the documentation and the dashboards know it."""

    name: str
    """With its prefix, and `_total` where it is a counter."""
    kind: Kind
    help: str
    labels: Sequence[str] = ()
    """Besides the common ones."""


def _family(name: str, kind: Kind, help: str, *labels: str) -> Family:  # noqa: A002 - Prometheus' word
    return Family(PREFIX + name, kind, help, labels)


RUN_INFO = _family(
    "run_info", Kind.GAUGE, "1, to join on.", "version", "world_size", "strategy", "device"
)
RUN_START = _family(
    "run_start_timestamp_seconds", Kind.GAUGE, "When the run was first started, in Unix time."
)
PHASE = _family("phase", Kind.GAUGE, "1 for what the run is doing now, else 0.", "phase")
LAUNCHER_UP = _family("launcher_up", Kind.GAUGE, "1 while a launcher leads the run.")
STATE_SECONDS = _family(
    "state_seconds_total",
    Kind.COUNTER,
    "Wall time of the run by what it was doing; sums to the time elapsed.",
    "state",
)
RANK_SECONDS = _family(
    "rank_seconds_total", Kind.COUNTER, "The same times the number of ranks.", "state"
)
LOST_WORK = _family(
    "lost_work_seconds_total",
    Kind.COUNTER,
    "Work and evaluation that the run went back behind, charged when training resumes.",
)
LOST_STEPS = _family("lost_steps_total", Kind.COUNTER, "Steps that the run went back behind.")
GOODPUT = _family(
    "goodput_ratio",
    Kind.GAUGE,
    "(work + evaluation - lost) / wall time, over the whole run.",
)
STEPS = _family("steps_total", Kind.COUNTER, "Finished steps, done first or again.", "kind")
TOKENS = _family("tokens_total", Kind.COUNTER, "Tokens of finished steps, over all ranks.", "kind")
STEP = _family("step", Kind.GAUGE, "The last finished step that the run holds.")
STEP_DURATION = _family(
    "step_duration_seconds",
    Kind.HISTOGRAM,
    "Work from one finished step to the next, without saves and evaluations.",
)
RESTARTS = _family(
    "restarts_total",
    Kind.COUNTER,
    "Failures after which the launcher began another attempt.",
    "cause",
)
BURNT_RESTARTS = _family(
    "burnt_restarts_total",
    Kind.COUNTER,
    "Attempts that ended before a step without an injected fault in them.",
)
RECOVERIES = _family(
    "unattended_recoveries_total", Kind.COUNTER, "Failures from which the run came back by itself."
)
INTERVENTIONS = _family(
    "manual_interventions_total",
    Kind.COUNTER,
    "Launches of the run after one that had not finished it.",
)
RESTART_DURATION = _family(
    "restart_duration_seconds",
    Kind.HISTOGRAM,
    "From the last finished step before a failure to the first after it, or to the same step again.",
    "until",
)
RESTART_PHASE_DURATION = _family(
    "restart_phase_duration_seconds", Kind.HISTOGRAM, "Parts of coming back.", "phase"
)
SAVES = _family(
    "checkpoint_saves_total",
    Kind.COUNTER,
    "Saves that ended, by how; one that its attempt left behind is superseded by the next one's.",
    "tier",
    "outcome",
)
STALL_DURATION = _family(
    "checkpoint_stall_duration_seconds", Kind.HISTOGRAM, "Training waited for a save.", "tier"
)
COMMIT_DURATION = _family(
    "checkpoint_commit_duration_seconds",
    Kind.HISTOGRAM,
    "From the start of a save until it was durable.",
    "tier",
)
RESTORE_DURATION = _family(
    "checkpoint_restore_duration_seconds",
    Kind.HISTOGRAM,
    "From the search for a state until it was in place.",
    "tier",
)
CHECKPOINT_BYTES = _family(
    "checkpoint_bytes_total",
    Kind.COUNTER,
    "Sizes of the checkpoints that became durable (write), and of those resumed from (read).",
    "direction",
    "tier",
)
CHECKPOINT_SIZE = _family(
    "checkpoint_size_bytes", Kind.GAUGE, "Size of the last checkpoint, over all ranks.", "tier"
)
INTERVAL = _family(
    "checkpoint_interval_seconds",
    Kind.GAUGE,
    "Work between the last two saves (current); what the run goes by (chosen); what the failures and stalls so far"
    " make best (optimal).",
    "tier",
    "kind",
)
REJECTED = _family(
    "checkpoint_rejected_total",
    Kind.COUNTER,
    "Checkpoints that a restore walked past, by what was wrong with them.",
    "reason",
)
LAST_SAVE_STEP = _family(
    "checkpoint_last_step", Kind.GAUGE, "Step of the last save that became durable.", "tier"
)
LAST_SAVE_TIME = _family(
    "checkpoint_last_timestamp_seconds",
    Kind.GAUGE,
    "When the last save became durable, in Unix time.",
    "tier",
)
STRAGGLER_DELAY = _family(
    "straggler_delay_seconds",
    Kind.GAUGE,
    "Own time of the rank in a step, minus the lower median of all ranks', over about the last second.",
    "rank",
)
STRAGGLER_WAIT = _family(
    "straggler_wait_seconds_total",
    Kind.COUNTER,
    "Time that the job waited for its slowest rank: its delay, step by step.",
)
STRAGGLER_NAMED = _family(
    "straggler_named",
    Kind.GAUGE,
    "1 for each rank that is slow beyond chance, by what it is slow at; no sample where none is.",
    "rank",
    "cause",
)
SLOWDOWN = _family(
    "step_slowdown_ratio",
    Kind.GAUGE,
    "Time of a step now, stragglers apart, over that of the run at its fastest.",
)
TOKENS_PER_SECOND = _family(
    "tokens_per_second",
    Kind.GAUGE,
    "Tokens of all ranks, redone ones too, a second of work, over the last 30 s of it.",
)
MFU = _family(
    "mfu_ratio",
    Kind.GAUGE,
    "Share of the devices' peak that the model takes, by torch's count and by 6 N a token.",
    "flops",
)
RANK_INFO = _family(
    "rank_info", Kind.GAUGE, "1, to join on.", "rank", "local_rank", "node", "gpu_uuid"
)
RANK_PROGRESS = _family(
    "rank_progress_timestamp_seconds",
    Kind.GAUGE,
    "When the rank last got on (a step, a save, an evaluation), in Unix time.",
    "rank",
)
RANK_UP = _family("rank_up", Kind.GAUGE, "1 while the rank's process lives.", "rank")
LOSS = _family("loss", Kind.GAUGE, "The last training loss that was read.")
VALIDATION_LOSS = _family("validation_loss", Kind.GAUGE, "The last loss on held-out data.")
TARGET_STEPS = _family(
    "target_loss_steps",
    Kind.GAUGE,
    "Step of the first evaluation that the run holds at or below a loss of target_losses.",
    "target",
)
TARGET_SECONDS = _family(
    "target_loss_seconds",
    Kind.GAUGE,
    "Wall time from the run's first start until that evaluation.",
    "target",
)
GRAD_NORM = _family(
    "grad_norm", Kind.GAUGE, "Norm of the gradient before clipping, when it was last read."
)
CLIP_NORM = _family("grad_clip_norm", Kind.GAUGE, "What job.clip clips that norm to.")
CLIPS = _family("clip_steps_total", Kind.COUNTER, "Steps that called job.clip, as last told.")
CLIPPED = _family(
    "clipped_steps_total", Kind.COUNTER, "Those of them whose gradient was longer than the line."
)
UPDATE_TO_WEIGHT = _family(
    "update_to_weight_ratio",
    Kind.GAUGE,
    "Length of one optimizer step by that of the weights: of all, by block, of tensors asked for.",
    "param_group",
)
NONFINITE = _family(
    "nonfinite_steps_total",
    Kind.COUNTER,
    "Steps with NaN or Inf in a rank's loss, the gradient, or weights that were to be saved.",
)
LOSS_SPIKES = _family(
    "loss_spikes_total", Kind.COUNTER, "Times that the training loss jumped out of what it was."
)
REPLICA_CHECKS = _family(
    "replica_checks_total", Kind.COUNTER, "Comparisons of the weights between all ranks."
)
REPLICA_MISMATCHES = _family(
    "replica_mismatches_total", Kind.COUNTER, "Those of them in which ranks differed."
)
AUDITS = _family(
    "gradient_audits_total", Kind.COUNTER, "Times that ranks computed each other's gradients again."
)
AUDIT_MISMATCHES = _family(
    "gradient_audit_mismatches_total", Kind.COUNTER, "Those of them that gave other bits."
)
FAULTS = _family(
    "faults_injected_total", Kind.COUNTER, "Faults that the injector applied.", "fault", "scope"
)
DETECTION_LATENCY = _family(
    "detection_latency_seconds",
    Kind.HISTOGRAM,
    "From the injection of a fault until the attempt that it hit was declared failed.",
    "fault",
)
MTBF = _family(
    "mtbf_seconds",
    Kind.GAUGE,
    "Mean time of training between failures: estimate, and bounds of 95 % on either side.",
    "bound",
)

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        *(RUN_INFO, RUN_START, PHASE, LAUNCHER_UP, STATE_SECONDS, RANK_SECONDS),
        *(LOST_WORK, LOST_STEPS, GOODPUT, STEPS, TOKENS, STEP, STEP_DURATION),
        *(RESTARTS, BURNT_RESTARTS, RECOVERIES, INTERVENTIONS),
        *(RESTART_DURATION, RESTART_PHASE_DURATION),
        *(SAVES, STALL_DURATION, COMMIT_DURATION, RESTORE_DURATION),
        *(CHECKPOINT_BYTES, CHECKPOINT_SIZE, INTERVAL, REJECTED, LAST_SAVE_STEP, LAST_SAVE_TIME),
        *(GRAD_NORM, CLIP_NORM, CLIPS, CLIPPED, UPDATE_TO_WEIGHT, NONFINITE),
        *(STRAGGLER_DELAY, STRAGGLER_WAIT, STRAGGLER_NAMED, SLOWDOWN),
        *(TOKENS_PER_SECOND, MFU),
        *(RANK_UP, RANK_INFO, RANK_PROGRESS, LOSS, VALIDATION_LOSS),
        *(TARGET_STEPS, TARGET_SECONDS),
        *(LOSS_SPIKES, REPLICA_CHECKS, REPLICA_MISMATCHES, AUDITS, AUDIT_MISMATCHES),
        *(FAULTS, DETECTION_LATENCY, MTBF),
    )
}
"""Every metric by name. Dashboards, rules and docs are tested against this table, both ways."""
