"""The dashboard of one run, its row about training: whether it learns, and how fast."""

from collections.abc import Sequence

from dashboards.panels import (
    BAD_IF_ANY,
    GREEN,
    GREY,
    ORANGE,
    VERMILLION,
    AnyPanel,
    Column,
    Place,
    Query,
    chart,
    listing,
)
from dashboards.queries import LATELY, ONE

_SINCE = (
    f"{ONE.all('run_info')} * on (job_name, run_id) group_left () "
    f"max by (job_name, run_id) ({ONE.all('run_start_timestamp_seconds')})"
)


def learning() -> Sequence[AnyPanel]:
    """Whether training is healthy."""
    return (
        _loss(),
        _gradient_norm(),
        _update_to_weight(),
        _tokens_a_second(),
        _mfu(),
        _clipped_steps(),
        _steps_kept_and_done_again(),
        _health(),
        _targets(),
        _run(),
    )


def _loss() -> AnyPanel:
    return chart(
        Place(
            "Loss",
            "Of one batch (noisy, drifts down) and on held-out text (the honest one). Bad: a jump that does not "
            "come back (see the gradient norm at the same time), or the two part (overfitting).",
        ),
        [
            Query(ONE.highest("loss"), "training"),
            Query(ONE.highest("validation_loss"), "validation"),
        ],
        least=None,
        colors={"training": GREY, "validation": GREEN},
    )


def _gradient_norm() -> AnyPanel:
    return chart(
        Place(
            "Gradient norm",
            "Before clipping; clipping acts above the dashed line. Bad: spikes that grow or always above the "
            "line: lower the learning rate, lengthen the warmup, look at the data of those steps.",
        ),
        [
            Query(ONE.highest("grad_norm"), "gradient norm"),
            Query(ONE.highest("grad_clip_norm"), "clipping"),
        ],
        dashed=("clipping",),
    )


def _update_to_weight() -> AnyPanel:
    return chart(
        Place(
            "Update to weight",
            "How far a step moves the weights, relative to their size: up through the warmup, then down with the "
            "schedule; about 0.001 is usual. Bad: a group far above the others, or 0: it does not learn.",
        ),
        [Query(ONE.highest("update_to_weight_ratio", "param_group"), "{{param_group}}")],
        "sci",
        logarithmic=True,
    )


def _tokens_a_second() -> AnyPanel:
    return chart(
        Place(
            "Tokens a second",
            "As the job reports it, and kept tokens over wall time, restarts and all. Bad: the first falls (a "
            "straggler, see above) or the second is far below (restarts, see above).",
            6,
        ),
        [
            Query(ONE.highest("tokens_per_second"), "while training"),
            Query(ONE.rate("tokens_total", LATELY, where='kind="useful"'), "kept, over all time"),
        ],
    )


def _mfu() -> AnyPanel:
    return chart(
        Place(
            "MFU",
            "Useful arithmetic as a share of the devices' peak; by counted operations and by 6N a token. Published "
            "runs have 38 to 52 %. Bad: it falls while the step is the same: slower devices.",
            6,
        ),
        [Query(ONE.highest("mfu_ratio", "flops"), "{{flops}}")],
        "percentunit",
    )


def _clipped_steps() -> AnyPanel:
    return chart(
        Place(
            "Clipped steps",
            "Share of the steps whose gradient was longer than the line. Bad: most of them, long after the "
            "warmup: the line or the learning rate is wrong, and the step's length is the line's, not the loss's.",
            6,
        ),
        [
            Query(
                f"{ONE.rate('clipped_steps_total', LATELY)} / ({ONE.rate('clip_steps_total', LATELY)} > 0)",
                "clipped",
            )
        ],
        "percentunit",
        most=1,
    )


def _steps_kept_and_done_again() -> AnyPanel:
    return chart(
        Place(
            "Steps, kept and done again",
            "A second. Bad: redone stays above 0 for long: saves are too far apart for this rate of failures.",
            6,
        ),
        [Query(ONE.rate("steps_total", LATELY, "kind"), "{{kind}}")],
        stacked=True,
        colors={"useful": GREEN, "redone": VERMILLION},
    )


def _health() -> AnyPanel:
    return listing(
        Place(
            "Health",
            "Bad: NaN or Inf (caught before the optimizer kept it; the report names step and rank), loss spikes "
            "(look at the data of those steps, or go back behind them), replicas that differ (a device computes "
            "wrongly: the report names the odd one; take it out), gradients that an audit found wrong (likewise).",
            9,
            4,
        ),
        [
            Column("NaN or Inf", ONE.highest("nonfinite_steps_total"), "none", BAD_IF_ANY),
            Column("loss spikes", ONE.highest("loss_spikes_total"), "none", BAD_IF_ANY),
            Column("replicas compared", ONE.highest("replica_checks_total"), "none"),
            Column("differed", ONE.highest("replica_mismatches_total"), "none", BAD_IF_ANY),
            Column("gradients audited", ONE.highest("gradient_audits_total"), "none"),
            Column("wrong", ONE.highest("gradient_audit_mismatches_total"), "none", BAD_IF_ANY),
        ],
    )


def _targets() -> AnyPanel:
    return listing(
        Place(
            "Steps to a target",
            "The first evaluation at or below each loss of target_losses, as precise as evaluations are far apart. "
            "Bad: later than in the run that this one is compared with (harness target tells more).",
            6,
            4,
        ),
        [
            Column("loss", "target"),
            Column("steps", ONE.highest("target_loss_steps", "target"), "none"),
            Column("after", ONE.highest("target_loss_seconds", "target"), "s"),
        ],
    )


def _run() -> AnyPanel:
    return listing(
        Place("Run", "What runs here.", 9, 4),
        [
            Column("version", "version"),
            Column("ranks", "world_size"),
            Column("strategy", "strategy"),
            Column("device", "device"),
            Column(
                "began",
                f"1000 * max by (version, world_size, strategy, device) ({_SINCE})",
                "dateTimeAsLocal",
                ((None, ORANGE),),
            ),
        ],
    )
