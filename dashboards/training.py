"""The dashboard of one run, second half: who is slow, and whether training is healthy."""

from collections.abc import Sequence

from dashboards.panels import (
    GREEN,
    GREY,
    ORANGE,
    VERMILLION,
    AnyPanel,
    Column,
    Place,
    Query,
    chart,
    heat,
    listing,
    strip,
)
from dashboards.queries import LATELY, ONE

_ANY = ((None, VERMILLION),)
_BAD_IF_ANY = ((None, GREEN), (1, VERMILLION))


def ranks() -> Sequence[AnyPanel]:
    """Who is slow, who is gone."""
    return (
        heat(
            Place(
                "Stragglers",
                "Own time of each rank's step beyond the median rank's. Bad: one row that stays dark: that device or its "
                "node is slow. Its name is in the table of ranks; look at its clock, its temperature and its loader.",
                12,
            ),
            Query(f"clamp_min({ONE.highest('straggler_delay_seconds', 'rank')}, 0)", "{{rank}}"),
            "s",
        ),
        chart(
            Place(
                "Waiting for the slowest",
                "Share of wall time in which all ranks wait for one. Bad: over some per cent: what replacing the "
                "slowest rank would win.",
                6,
            ),
            [Query(ONE.rate("straggler_wait_seconds_total", LATELY), "waiting")],
            "percentunit",
        ),
        chart(
            Place(
                "Step time",
                "Half and nine tenths of the steps take less. Bad: the two drift apart (stragglers, a loader that "
                "stutters) or both rise (everyone slow: storage of data, network, power).",
                6,
            ),
            [
                Query(ONE.quantile(0.5, "step_duration_seconds", LATELY), "p50"),
                Query(ONE.quantile(0.9, "step_duration_seconds", LATELY), "p90"),
            ],
            "s",
        ),
        chart(
            Place(
                "Slower than at its fastest",
                "Time of a step, stragglers apart, over that of the run at its best; 1 is best. Bad: over 1.1 for "
                "long: all ranks are slow, so no row of the heat map is dark: data, network, power or heat.",
                6,
                6,
            ),
            [Query(ONE.highest("step_slowdown_ratio"), "slower by")],
            least=1,
        ),
        listing(
            Place(
                "Named as slow",
                "Ranks that are slow beyond chance, and at what: data or compute. Bad: any: move that rank to another "
                "device, or take the node out; for data, look at its loader and disk. Empty is good.",
                6,
                6,
            ),
            [
                Column("rank", "rank"),
                Column("slow at", "cause"),
                Column("named", ONE.highest("straggler_named", "rank", "cause"), "none", _ANY),
            ],
        ),
        chart(
            Place(
                "Since a rank's last sign of progress",
                "Bad: one line climbs alone: that rank hangs; the launcher ends it once its limit is over.",
                6,
                6,
            ),
            [
                Query(
                    f"time() - {ONE.highest('rank_progress_timestamp_seconds', 'rank')}", "{{rank}}"
                )
            ],
            "s",
        ),
        listing(
            Place(
                "Ranks",
                "Where each rank runs; join on it with the metrics of nodes and devices.",
                6,
                6,
            ),
            [
                Column("rank", "rank"),
                Column("local", "local_rank"),
                Column("node", "node"),
                Column("GPU", "gpu_uuid"),
                Column(
                    "up",
                    f"max by (rank, local_rank, node, gpu_uuid) ({ONE.all('rank_info')})",
                    "none",
                ),
            ],
        ),
        strip(
            Place(
                "Ranks up",
                "Whose process lives. Bad: one row with more gaps than the others: that rank dies alone.",
                24,
                5,
            ),
            [Query(f"max by (rank) ({ONE.all('rank_up')})", "{{rank}}")],
            [("gone", VERMILLION), ("up", GREEN)],
            first=0,
        ),
    )


def learning() -> Sequence[AnyPanel]:
    """Whether training is healthy."""
    return (
        chart(
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
        ),
        chart(
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
        ),
        chart(
            Place(
                "Update to weight",
                "How far a step moves the weights, relative to their size: up through the warmup, then down with the "
                "schedule; about 0.001 is usual. Bad: a group far above the others, or 0: it does not learn.",
            ),
            [Query(ONE.highest("update_to_weight_ratio", "param_group"), "{{param_group}}")],
            "sci",
            logarithmic=True,
        ),
        chart(
            Place(
                "Tokens a second",
                "As the job reports it, and kept tokens over wall time, restarts and all. Bad: the first falls (a "
                "straggler, see above) or the second is far below (restarts, see above).",
                6,
            ),
            [
                Query(ONE.highest("tokens_per_second"), "while training"),
                Query(
                    ONE.rate("tokens_total", LATELY, where='kind="useful"'), "kept, over all time"
                ),
            ],
        ),
        chart(
            Place(
                "MFU",
                "Useful arithmetic as a share of the devices' peak; by counted operations and by 6N a token. Published "
                "runs have 38 to 52 %. Bad: it falls while the step is the same: slower devices.",
                6,
            ),
            [Query(ONE.highest("mfu_ratio", "flops"), "{{flops}}")],
            "percentunit",
        ),
        chart(
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
        ),
        chart(
            Place(
                "Steps, kept and done again",
                "A second. Bad: redone stays above 0 for long: saves are too far apart for this rate of failures.",
                6,
            ),
            [Query(ONE.rate("steps_total", LATELY, "kind"), "{{kind}}")],
            stacked=True,
            colors={"useful": GREEN, "redone": VERMILLION},
        ),
        listing(
            Place(
                "Health",
                "Bad: NaN or Inf (caught before the optimizer kept it; the report names step and rank), loss spikes "
                "(look at the data of those steps, or go back behind them), replicas that differ (a device computes "
                "wrongly: the report names the odd one; take it out), gradients that an audit found wrong (likewise).",
                12,
                4,
            ),
            [
                Column("NaN or Inf", ONE.highest("nonfinite_steps_total"), "none", _BAD_IF_ANY),
                Column("loss spikes", ONE.highest("loss_spikes_total"), "none", _BAD_IF_ANY),
                Column("replicas compared", ONE.highest("replica_checks_total"), "none"),
                Column("differed", ONE.highest("replica_mismatches_total"), "none", _BAD_IF_ANY),
                Column("gradients audited", ONE.highest("gradient_audits_total"), "none"),
                Column(
                    "wrong", ONE.highest("gradient_audit_mismatches_total"), "none", _BAD_IF_ANY
                ),
            ],
        ),
        listing(
            Place("Run", "What runs here.", 12, 4),
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
        ),
    )


_SINCE = (
    f"{ONE.all('run_info')} * on (job_name, run_id) group_left () "
    f"max by (job_name, run_id) ({ONE.all('run_start_timestamp_seconds')})"
)
