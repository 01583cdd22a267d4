"""The dashboard of one run, its row about checkpoints."""

from collections.abc import Sequence

from dashboards.panels import BLUE, GREEN, VERMILLION, AnyPanel, Place, Query, chart
from dashboards.queries import AN_HOUR, LATELY, ONE


def checkpoints() -> Sequence[AnyPanel]:
    """What is saved, what it costs, what it would save."""
    return (
        _stall(),
        _commit_and_restore(),
        _age_of_the_newest_state(),
        _steps_at_risk(),
        _saves_and_rejections(),
        _interval_between_saves(),
        _size(),
        _bytes_a_second(),
    )


def _stall() -> AnyPanel:
    return chart(
        Place(
            "Stall",
            "How long training waits for a save: mean over the run, and the slowest tenth of the last hour. "
            "Bad: more than a step or two; the copy is slow (pinned memory?) or the saver is behind.",
        ),
        [
            Query(ONE.mean("checkpoint_stall_duration_seconds", "tier"), "{{tier}}, mean"),
            Query(
                ONE.quantile(0.9, "checkpoint_stall_duration_seconds", AN_HOUR, "tier"),
                "{{tier}}, p90",
            ),
        ],
        "s",
    )


def _commit_and_restore() -> AnyPanel:
    return chart(
        Place(
            "Commit and restore",
            "From the start of a save until it is durable, and from the search for a state until it is loaded; "
            "means over the run. Bad: a commit takes longer than the interval; storage is the bottleneck.",
        ),
        [
            Query(ONE.mean("checkpoint_commit_duration_seconds", "tier"), "commit, {{tier}}"),
            Query(ONE.mean("checkpoint_restore_duration_seconds", "tier"), "restore, {{tier}}"),
        ],
        "s",
    )


def _age_of_the_newest_state() -> AnyPanel:
    return chart(
        Place(
            "Age of the newest state",
            "What a failure would cost: of a process, the younger tier; of the machine, storage. Bad: a line "
            "that climbs past the interval; saves fail or no longer end.",
        ),
        [
            Query(
                f"time() - {ONE.highest('checkpoint_last_timestamp_seconds', 'tier')}",
                "{{tier}}",
            ),
        ],
        "s",
    )


def _steps_at_risk() -> AnyPanel:
    return chart(
        Place(
            "Steps at risk",
            "Steps since the newest state of each tier: what would be done again. Bad: it climbs without falling back.",
        ),
        [
            Query(
                f"scalar({ONE.highest('step')}) - {ONE.highest('checkpoint_last_step', 'tier')}",
                "{{tier}}",
            )
        ],
        stairs=True,
    )


def _saves_and_rejections() -> AnyPanel:
    return chart(
        Place(
            "Saves and rejections",
            "Counted since the run began. Bad: failed (the log names the error: full, refused, too slow), or any "
            "rejection: a restore met a damaged checkpoint; `harness checkpoint ls --verify` shows which.",
        ),
        [
            Query(
                f"{ONE.highest('checkpoint_saves_total', 'tier', 'outcome')} > 0",
                "{{tier}} {{outcome}}",
            ),
            Query(f"sum({ONE.highest('checkpoint_rejected_total', 'reason')})", "rejected"),
        ],
        stairs=True,
        colors={"storage committed": BLUE, "memory committed": GREEN, "rejected": VERMILLION},
    )


def _interval_between_saves() -> AnyPanel:
    return chart(
        Place(
            "Interval between saves",
            "As it is and as theory would have it for the failures and saves seen so far. Bad: a factor of two "
            "apart, either way: set `--storage-every auto`.",
        ),
        [Query(ONE.highest("checkpoint_interval_seconds", "tier", "kind"), "{{tier}}, {{kind}}")],
        "s",
    )


def _size() -> AnyPanel:
    return chart(
        Place(
            "Size",
            "Bytes of the newest checkpoint. Bad: it grows; something in the state is a list of all that was.",
            12,
        ),
        [Query(ONE.highest("checkpoint_size_bytes", "tier"), "{{tier}}")],
        "bytes",
    )


def _bytes_a_second() -> AnyPanel:
    return chart(
        Place(
            "Bytes a second",
            "What checkpoints move. Bad: close to what the storage can take.",
            12,
        ),
        [
            Query(
                ONE.rate("checkpoint_bytes_total", LATELY, "direction", "tier"),
                "{{direction}}, {{tier}}",
            )
        ],
        "Bps",
    )
