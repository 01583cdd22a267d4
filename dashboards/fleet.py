"""The dashboard of many runs, its first rows: which of them are well."""

from collections.abc import Sequence

from dashboards.panels import (
    GREEN,
    ORANGE,
    VERMILLION,
    AnyPanel,
    Column,
    Place,
    Query,
    chart,
    figure,
    listing,
    ranking,
)
from dashboards.queries import BAD, BY_RUN, GOOD, IN_VIEW, LATELY, MANY, RANK_SECONDS_LOST

_AT_WORK = 'phase=~"work|evaluation|save_stall"'
_RESTARTS = f"sum by (job_name, run_id) ({MANY.highest('restarts_total', 'cause')})"
_WALL = f"sum by (job_name, run_id) ({MANY.highest('state_seconds_total', 'state')})"
_BEHIND = f"max by (job_name, run_id, rank) (avg_over_time({MANY.all('straggler_delay_seconds')}[{IN_VIEW}]))"
_NODE = f"max by (job_name, run_id, rank, node) ({MANY.all('rank_info')})"
_PER_DAY = f"86400 * {_RESTARTS} / {_WALL}"


def _paid(where: str = "") -> str:
    return f"sum({MANY.highest('rank_seconds_total', 'state', where=where)})"


def now() -> Sequence[AnyPanel]:
    """All runs in six numbers."""
    return (
        _runs_at_work(),
        _goodput(),
        _failures_a_day(),
        _rank_time_lost(),
        _runs_without_a_launcher(),
        _by_hand(),
    )


def _runs_at_work() -> AnyPanel:
    return figure(
        Place("Runs at work", "Runs that train, score or save at this moment.", 4, 4),
        Query(f"sum({MANY.highest('phase', 'phase', where=_AT_WORK)})"),
    )


def _goodput() -> AnyPanel:
    return figure(
        Place(
            "Goodput",
            "Of all that was paid for, the share that was kept work. Bad: under 90 %; badput by cause says where to look.",
            4,
            4,
        ),
        Query(f"({_paid(GOOD)} - sum({RANK_SECONDS_LOST})) / {_paid()}"),
        "percentunit",
        steps=((None, VERMILLION), (0.8, ORANGE), (0.9, GREEN)),
        decimals=1,
    )


def _failures_a_day() -> AnyPanel:
    return figure(
        Place(
            "Failures a day",
            "Of all runs together, over their own time. Bad: it doubles; see which run.",
            4,
            4,
        ),
        Query(f"86400 * sum({_RESTARTS}) / sum({_WALL})"),
        decimals=1,
    )


def _rank_time_lost() -> AnyPanel:
    return figure(
        Place(
            "Rank time lost",
            "Paid for and no kept work: all states but work and evaluation, and work lost.",
            4,
            4,
        ),
        Query(f"{_paid(BAD)} + sum({RANK_SECONDS_LOST})"),
        "s",
        steps=((None, ORANGE),),
    )


def _runs_without_a_launcher() -> AnyPanel:
    return figure(
        Place(
            "Runs without a launcher",
            "Bad: any that should run: nobody restarts it. Start it again.",
            4,
            4,
        ),
        Query(f"sum(1 - {MANY.highest('launcher_up')})"),
        steps=((None, GREEN), (1, VERMILLION)),
    )


def _by_hand() -> AnyPanel:
    return figure(
        Place(
            "By hand",
            "Times that someone had to start a run again. Bad: any; its launcher's last line says why.",
            4,
            4,
        ),
        Query(f"sum({MANY.highest('manual_interventions_total')})"),
        steps=((None, GREEN), (1, ORANGE)),
    )


def runs() -> Sequence[AnyPanel]:
    """Each run."""
    return (
        _runs(),
        _goodput_by_run(),
        _restarts_by_run(),
        _alerts(),
        _failures_by_run(),
        _mtbf_and_its_bounds(),
        _worst_stragglers(),
    )


def _runs() -> AnyPanel:
    return listing(
        Place(
            "Runs",
            "One line a run; its name opens it. Bad: the run with the lowest goodput, the most failures a day or the oldest state.",
            24,
            7,
        ),
        [
            Column("run", "run_id"),
            Column("job", "job_name"),
            Column(
                "goodput",
                MANY.highest("goodput_ratio"),
                "percentunit",
                ((None, VERMILLION), (0.8, ORANGE), (0.9, GREEN)),
            ),
            Column("step", MANY.highest("step"), "none"),
            Column("restarts", _RESTARTS, "none"),
            Column("failures a day", _PER_DAY, "short"),
            Column("MTBF", MANY.highest("mtbf_seconds", where='bound="estimate"'), "s"),
            Column("at least", MANY.highest("mtbf_seconds", where='bound="lower"'), "s"),
            Column("at most", MANY.highest("mtbf_seconds", where='bound="upper"'), "s"),
            Column("work lost", MANY.highest("lost_work_seconds_total"), "s"),
            Column(
                "newest state",
                f"time() - {MANY.highest('checkpoint_last_timestamp_seconds')}",
                "s",
            ),
        ],
        link="/d/harness-run?var-datasource=${datasource}&var-job_name=${__data.fields.job}&var-run_id=${__data.fields.run}",
    )


def _goodput_by_run() -> AnyPanel:
    return chart(
        Place(
            "Goodput by run",
            "Over the window that the picture's resolution allows. Bad: one line under the others.",
            8,
        ),
        [Query(MANY.goodput(LATELY), BY_RUN)],
        "percentunit",
        most=1,
    )


def _restarts_by_run() -> AnyPanel:
    return chart(
        Place(
            "Restarts by run",
            "Counted since each run began. Bad: a staircase that gets steeper.",
            8,
        ),
        [Query(_RESTARTS, BY_RUN)],
        stairs=True,
    )


def _alerts() -> AnyPanel:
    return listing(
        Place(
            "Alerts",
            "What fires now; docs/runbook.md says what to do about each. Empty is good.",
            8,
        ),
        [
            Column("job", "job_name"),
            Column("run", "run_id"),
            Column("alert", "alertname"),
            Column("severity", "severity"),
            Column("fires", MANY.alerts(), "none", ((None, VERMILLION),)),
        ],
    )


def _failures_by_run() -> AnyPanel:
    return ranking(
        Place(
            "Failures a day",
            "Each run's restarts over its own time. Bad: one run far above the others on the same machines: its script.",
        ),
        Query(f"sort_desc({_PER_DAY})", BY_RUN),
        "short",
    )


def _mtbf_and_its_bounds() -> AnyPanel:
    return chart(
        Place(
            "MTBF and its bounds",
            "Time between failures: estimate, and what few failures allow (90 %). Bad: the upper bound falls under "
            "what you planned with: plan again with `harness plan --from`.",
            8,
        ),
        [Query(MANY.highest("mtbf_seconds", "bound"), "{{run_id}} {{bound}}")],
        "s",
        logarithmic=True,
    )


def _worst_stragglers() -> AnyPanel:
    return listing(
        Place(
            "Worst stragglers",
            "Ranks that were behind the median most, on average over what is shown. Bad: the same node in several runs: drain it.",
            8,
        ),
        [
            Column("run", "run_id"),
            Column("rank", "rank"),
            Column("node", "node"),
            Column(
                "behind by",
                f"topk(10, {_BEHIND}) * on (job_name, run_id, rank) group_left (node) {_NODE}",
                "s",
            ),
        ],
    )
