"""The dashboard of many runs: which of them are well, and what all of them lose to what."""

from collections.abc import Sequence

from dashboards.panels import (
    BLUE,
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
from dashboards.queries import IN_VIEW, LATELY, MANY
from dashboards.run import STATES

_NAME = "{{job_name}} {{run_id}}"
_GOOD = 'state=~"work|evaluation"'
_AT_WORK = 'phase=~"work|evaluation|save_stall"'
_FAILED = 'outcome="failed"'
_BAD = 'state!~"work|evaluation"'
_BADPUT = {state: color for state, color in STATES.items() if state not in ("work", "evaluation")}
_RANKS = f"count by (job_name, run_id) ({MANY.all('rank_up')})"
_LOST = f"{MANY.highest('lost_work_seconds_total')} * on (job_name, run_id) {_RANKS}"
_RESTARTS = f"sum by (job_name, run_id) ({MANY.highest('restarts_total', 'cause')})"
_WALL = f"sum by (job_name, run_id) ({MANY.highest('state_seconds_total', 'state')})"
_PER_DAY = f"86400 * {_RESTARTS} / {_WALL}"


def _paid(where: str = "") -> str:
    return f"sum({MANY.highest('rank_seconds_total', 'state', where=where)})"


def now() -> Sequence[AnyPanel]:
    """All runs in six numbers."""
    return (
        figure(
            Place("Runs at work", "Runs that train, score or save at this moment.", 4, 4),
            Query(f"sum({MANY.highest('phase', 'phase', where=_AT_WORK)})"),
        ),
        figure(
            Place(
                "Goodput",
                "Of all that was paid for, the share that was kept work. Bad: under 90 %; badput by cause says where to look.",
                4,
                4,
            ),
            Query(f"({_paid(_GOOD)} - sum({_LOST})) / {_paid()}"),
            "percentunit",
            steps=((None, VERMILLION), (0.8, ORANGE), (0.9, GREEN)),
            decimals=1,
        ),
        figure(
            Place(
                "Failures a day",
                "Of all runs together, over their own time. Bad: it doubles; see which run.",
                4,
                4,
            ),
            Query(f"86400 * sum({_RESTARTS}) / sum({_WALL})"),
            decimals=1,
        ),
        figure(
            Place(
                "Rank time lost",
                "Paid for and no kept work: all states but work and evaluation, and work lost.",
                4,
                4,
            ),
            Query(f"{_paid(_BAD)} + sum({_LOST})"),
            "s",
            steps=((None, ORANGE),),
        ),
        figure(
            Place(
                "Runs without a launcher",
                "Bad: any that should run: nobody restarts it. Start it again.",
                4,
                4,
            ),
            Query(f"sum(1 - {MANY.highest('launcher_up')})"),
            steps=((None, GREEN), (1, VERMILLION)),
        ),
        figure(
            Place(
                "By hand",
                "Times that someone had to start a run again. Bad: any; its launcher's last line says why.",
                4,
                4,
            ),
            Query(f"sum({MANY.highest('manual_interventions_total')})"),
            steps=((None, GREEN), (1, ORANGE)),
        ),
    )


def runs() -> Sequence[AnyPanel]:
    """Each run."""
    return (
        listing(
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
        ),
        chart(
            Place(
                "Goodput by run",
                "Over the window that the picture's resolution allows. Bad: one line under the others.",
                8,
            ),
            [Query(MANY.goodput(LATELY), _NAME)],
            "percentunit",
            most=1,
        ),
        chart(
            Place(
                "Restarts by run",
                "Counted since each run began. Bad: a staircase that gets steeper.",
                8,
            ),
            [Query(_RESTARTS, _NAME)],
            stairs=True,
        ),
        listing(
            Place(
                "Alerts",
                "What fires now; docs/runbook.md says what to do about each. Empty is good.",
                8,
            ),
            [
                Column("run", "run_id"),
                Column("alert", "alertname"),
                Column("severity", "severity"),
                Column("fires", MANY.alerts(), "none", ((None, VERMILLION),)),
            ],
        ),
        ranking(
            Place(
                "Failures a day",
                "Each run's restarts over its own time. Bad: one run far above the others on the same machines: its script.",
            ),
            Query(f"sort_desc({_PER_DAY})", _NAME),
            "short",
        ),
        chart(
            Place(
                "MTBF and its bounds",
                "Time between failures: estimate, and what few failures allow (90 %). Bad: the upper bound falls under "
                "what you planned with: plan again with `harness plan --from`.",
                8,
            ),
            [Query(MANY.highest("mtbf_seconds", "bound"), "{{run_id}} {{bound}}")],
            "s",
            logarithmic=True,
        ),
        listing(
            Place(
                "Worst stragglers",
                "Ranks that were behind the median most, on average over what is shown. Bad: the same node in several runs: drain it.",
                8,
            ),
            [
                Column("run", "run_id"),
                Column("rank", "rank"),
                Column("behind by", f"topk(10, {_BEHIND})", "s"),
            ],
        ),
    )


_BEHIND = f"max by (job_name, run_id, rank) (avg_over_time({MANY.all('straggler_delay_seconds')}[{IN_VIEW}]))"


def badput() -> Sequence[AnyPanel]:
    """What it costs."""
    return (
        ranking(
            Place(
                "Badput by cause",
                "Rank-seconds by state that were no work, over what is shown. Bad: the longest bar: each panel of the "
                "run's dashboard says what to do about its state.",
                8,
            ),
            Query(
                f"sort_desc(sum by (state) (increase({MANY.all('rank_seconds_total', _BAD)}[{IN_VIEW}])))",
                "{{state}}",
            ),
            colors=_BADPUT,
        ),
        chart(
            Place(
                "Ranks without work",
                "How many ranks' worth of time goes where. Bad: a colour that stays.",
                8,
            ),
            [
                Query(
                    f"sum by (state) (rate({MANY.all('rank_seconds_total', _BAD)}[{LATELY}]))",
                    "{{state}}",
                )
            ],
            stacked=True,
            colors=_BADPUT,
        ),
        chart(
            Place(
                "Rank-seconds lost",
                "Work done and rolled back, times the ranks that did it. Bad: tall stairs: that run saves too rarely.",
                8,
            ),
            [Query(_LOST, _NAME)],
            "s",
            stairs=True,
        ),
        chart(
            Place(
                "Restarts by cause",
                "Of all runs. Bad: one cause takes over: a driver, a switch, a release.",
                12,
            ),
            [Query(f"sum by (cause) ({MANY.highest('restarts_total', 'cause')}) > 0", "{{cause}}")],
            stairs=True,
        ),
        chart(
            Place(
                "Checkpoint saves that failed",
                "Of all runs. Bad: any: storage is full, slow or gone.",
                12,
            ),
            [
                Query(
                    f"sum by (tier) ({MANY.highest('checkpoint_saves_total', 'tier', where=_FAILED)})",
                    "{{tier}}",
                )
            ],
            stairs=True,
            colors={"storage": VERMILLION, "memory": BLUE},
        ),
    )
