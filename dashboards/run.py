"""The dashboard of one run, its first rows: what it is doing, and where its time goes."""

from collections.abc import Sequence

from dashboards.panels import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SKY,
    VERMILLION,
    YELLOW,
    AnyPanel,
    Place,
    Query,
    chart,
    figure,
    ranking,
    strip,
)
from dashboards.queries import AN_HOUR, LATELY, ONE, coded
from harness.phases import Phase

COLORS = {
    Phase.WORK: GREEN,
    Phase.EVALUATION: SKY,
    Phase.SAVE_STALL: BLUE,
    Phase.INTERRUPTED: VERMILLION,
    Phase.RESTART: ORANGE,
    Phase.RESTORE: YELLOW,
    Phase.WARMUP: PINK,
    Phase.STARTUP: GREY,
    Phase.DRAIN: "#B0B0B0",
    Phase.DOWN: "#333333",
    Phase.FINISHED: DARK,
}
STATES = {phase.value: color for phase, color in COLORS.items() if phase is not Phase.FINISHED}
_PHASES = [(phase.value, color) for phase, color in COLORS.items()]
_STORED = 'tier="storage"'
_NOW = coded("phase", "phase", [name for name, _ in _PHASES])


def now() -> Sequence[AnyPanel]:
    """What one sees first."""
    return (
        _now(),
        _goodput(),
        _step(),
        _ranks_up(),
        _restarts(),
        _work_lost(),
        _since_the_last_commit(),
        _launcher_up(),
    )


def _now() -> AnyPanel:
    return figure(
        Place(
            "Now",
            "What the job is doing. Bad: `down` without an end; see that `harness run` lives.",
            3,
            4,
        ),
        Query(f"max({_NOW})"),
        names=_PHASES,
    )


def _goodput() -> AnyPanel:
    return figure(
        Place(
            "Goodput",
            "Kept work and evaluation as a share of all wall time since the run began. Bad: under 90 %. "
            "Look below for the state that takes the rest.",
            3,
            4,
        ),
        Query(ONE.highest("goodput_ratio")),
        "percentunit",
        steps=((None, VERMILLION), (0.8, ORANGE), (0.9, GREEN)),
        decimals=1,
    )


def _step() -> AnyPanel:
    return figure(
        Place("Step", "The last finished step that the run holds.", 3, 4),
        Query(ONE.highest("step")),
    )


def _ranks_up() -> AnyPanel:
    return figure(
        Place("Ranks up", "Ranks whose process lives. Bad: fewer than the job has.", 3, 4),
        Query(f"sum(max by (rank) ({ONE.all('rank_up')}))"),
    )


def _restarts() -> AnyPanel:
    return figure(
        Place(
            "Restarts",
            "Failures after which another attempt began. Bad: more each hour; see the causes below.",
            3,
            4,
        ),
        Query(f"sum({ONE.highest('restarts_total', 'cause')})"),
        steps=((None, GREEN), (1, ORANGE)),
    )


def _work_lost() -> AnyPanel:
    return figure(
        Place(
            "Work lost",
            "Work that was done and rolled back. Bad: much per restart; save more often.",
            3,
            4,
        ),
        Query(ONE.highest("lost_work_seconds_total")),
        "s",
        steps=((None, GREEN), (0.001, VERMILLION)),
        decimals=1,
    )


def _since_the_last_commit() -> AnyPanel:
    return figure(
        Place(
            "Since the last commit",
            "What a loss of the machine would cost now. Bad: several intervals; look at failed saves below.",
            3,
            4,
        ),
        Query(f"time() - {ONE.highest('checkpoint_last_timestamp_seconds', where=_STORED)}"),
        "s",
        decimals=0,
    )


def _launcher_up() -> AnyPanel:
    return figure(
        Place(
            "Launcher up",
            "1 while a launcher leads the run. Bad: 0, for nobody restarts it then.",
            3,
            4,
        ),
        Query(ONE.highest("launcher_up")),
        steps=((None, VERMILLION), (1, GREEN)),
    )


def time() -> Sequence[AnyPanel]:
    """Where the time goes."""
    return (
        _phases(),
        _goodput_over_time(),
        _split_of_the_time(),
        _time_since_the_run_began(),
    )


def _phases() -> AnyPanel:
    return strip(
        Place(
            "Phases",
            "What the job was doing when. Bad: stripes of vermillion (nobody has noticed yet) and orange "
            "(coming back); the rows below say why.",
            24,
            4,
        ),
        [Query(f"max({_NOW})", "job")],
        _PHASES,
    )


def _goodput_over_time() -> AnyPanel:
    return chart(
        Place(
            "Goodput over time",
            "The last minutes, the last hour and the whole run. Bad: the first falls and stays down; the split "
            "beside it names the state that took over.",
        ),
        [
            Query(ONE.goodput(LATELY), "lately"),
            Query(ONE.goodput(AN_HOUR), "last hour"),
            Query(ONE.highest("goodput_ratio"), "whole run"),
        ],
        "percentunit",
        most=1,
    )


def _split_of_the_time() -> AnyPanel:
    return chart(
        Place(
            "Split of the time",
            "Share of wall time by what the job was doing. Bad: save_stall over some per cent (save less often, "
            "or into memory), restore and restart (see the parts of a restart), evaluation beyond what you meant.",
        ),
        [Query(f"{ONE.rate('state_seconds_total', LATELY, 'state')}", "{{state}}")],
        "percentunit",
        stacked=True,
        most=1,
        colors=STATES,
    )


def _time_since_the_run_began() -> AnyPanel:
    return ranking(
        Place(
            "Time since the run began",
            "Seconds by what the job was doing; they sum to its age.",
        ),
        Query(f"sort_desc({ONE.highest('state_seconds_total', 'state')})", "{{state}}"),
        colors=STATES,
    )
