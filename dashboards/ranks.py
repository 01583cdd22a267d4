"""The dashboard of one run, its row about ranks: who is slow, who is gone."""

from collections.abc import Sequence

from dashboards.panels import (
    GREEN,
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


def ranks() -> Sequence[AnyPanel]:
    """Who is slow, who is gone."""
    return (
        _stragglers(),
        _waiting_for_the_slowest(),
        _step_time(),
        _slower_than_at_its_fastest(),
        _named_as_slow(),
        _since_a_rank_s_last_sign_of_progress(),
        _ranks(),
        _ranks_up(),
    )


def _stragglers() -> AnyPanel:
    return heat(
        Place(
            "Stragglers",
            "Own time of each rank's step beyond the median rank's. Bad: one row that stays dark: that device or its "
            "node is slow. Its name is in the table of ranks; look at its clock, its temperature and its loader.",
            12,
        ),
        Query(f"clamp_min({ONE.highest('straggler_delay_seconds', 'rank')}, 0)", "{{rank}}"),
        "s",
    )


def _waiting_for_the_slowest() -> AnyPanel:
    return chart(
        Place(
            "Waiting for the slowest",
            "Share of wall time in which all ranks wait for one. Bad: over some per cent: what replacing the "
            "slowest rank would win.",
            6,
        ),
        [Query(ONE.rate("straggler_wait_seconds_total", LATELY), "waiting")],
        "percentunit",
    )


def _step_time() -> AnyPanel:
    return chart(
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
    )


def _slower_than_at_its_fastest() -> AnyPanel:
    return chart(
        Place(
            "Slower than at its fastest",
            "Time of a step, stragglers apart, over that of the run at its best; 1 is best. Bad: over 1.1 for "
            "long: all ranks are slow, so no row of the heat map is dark: data, network, power or heat.",
            6,
            6,
        ),
        [Query(ONE.highest("step_slowdown_ratio"), "slower by")],
        least=1,
    )


def _named_as_slow() -> AnyPanel:
    return listing(
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
    )


def _since_a_rank_s_last_sign_of_progress() -> AnyPanel:
    return chart(
        Place(
            "Since a rank's last sign of progress",
            "Bad: one line climbs alone: that rank hangs; the launcher ends it once its limit is over.",
            6,
            6,
        ),
        [Query(f"time() - {ONE.highest('rank_progress_timestamp_seconds', 'rank')}", "{{rank}}")],
        "s",
    )


def _ranks() -> AnyPanel:
    return listing(
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
    )


def _ranks_up() -> AnyPanel:
    return strip(
        Place(
            "Ranks up",
            "Whose process lives. Bad: one row with more gaps than the others: that rank dies alone.",
            24,
            5,
        ),
        [Query(f"max by (rank) ({ONE.all('rank_up')})", "{{rank}}")],
        [("gone", VERMILLION), ("up", GREEN)],
        first=0,
    )
