"""The dashboard of many runs, its row about what all of them lose to what."""

from collections.abc import Sequence

from dashboards.panels import (
    BLUE,
    VERMILLION,
    AnyPanel,
    Place,
    Query,
    chart,
    ranking,
)
from dashboards.queries import BAD, BY_RUN, IN_VIEW, LATELY, MANY, RANK_SECONDS_LOST
from dashboards.run import STATES

_FAILED = 'outcome="failed"'
_BADPUT = {state: color for state, color in STATES.items() if state not in ("work", "evaluation")}


def badput() -> Sequence[AnyPanel]:
    """What it costs."""
    return (
        _badput_by_cause(),
        _ranks_without_work(),
        _rank_seconds_lost(),
        _restarts_by_cause(),
        _checkpoint_saves_that_failed(),
    )


def _badput_by_cause() -> AnyPanel:
    return ranking(
        Place(
            "Badput by cause",
            "Rank-seconds by state that were no work, over what is shown. Bad: the longest bar: each panel of the "
            "run's dashboard says what to do about its state.",
            8,
        ),
        Query(
            f"sort_desc(sum by (state) (increase({MANY.all('rank_seconds_total', BAD)}[{IN_VIEW}])))",
            "{{state}}",
        ),
        colors=_BADPUT,
    )


def _ranks_without_work() -> AnyPanel:
    return chart(
        Place(
            "Ranks without work",
            "How many ranks' worth of time goes where. Bad: a colour that stays.",
            8,
        ),
        [
            Query(
                f"sum by (state) (rate({MANY.all('rank_seconds_total', BAD)}[{LATELY}]))",
                "{{state}}",
            )
        ],
        stacked=True,
        colors=_BADPUT,
    )


def _rank_seconds_lost() -> AnyPanel:
    return chart(
        Place(
            "Rank-seconds lost",
            "Work done and rolled back, times the ranks that did it. Bad: tall stairs: that run saves too rarely.",
            8,
        ),
        [Query(RANK_SECONDS_LOST, BY_RUN)],
        "s",
        stairs=True,
    )


def _restarts_by_cause() -> AnyPanel:
    return chart(
        Place(
            "Restarts by cause",
            "Of all runs. Bad: one cause takes over: a driver, a switch, a release.",
            12,
        ),
        [Query(f"sum by (cause) ({MANY.highest('restarts_total', 'cause')}) > 0", "{{cause}}")],
        stairs=True,
    )


def _checkpoint_saves_that_failed() -> AnyPanel:
    return chart(
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
    )
