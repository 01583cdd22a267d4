"""The dashboard of one run, its row about failures: what broke, and the way back."""

from collections.abc import Sequence

from dashboards.panels import (
    BAD_IF_ANY,
    BLUE,
    DARK,
    GREY,
    ORANGE,
    PINK,
    SKY,
    VERMILLION,
    YELLOW,
    AnyPanel,
    Column,
    Place,
    Query,
    chart,
    listing,
    ranking,
)
from dashboards.queries import AN_HOUR, ONE
from harness.recovery import Stage

PARTS = {
    Stage.DETECT.value: VERMILLION,
    Stage.STACKS.value: DARK,
    Stage.TEARDOWN.value: GREY,
    Stage.RENDEZVOUS.value: SKY,
    Stage.SPAWN.value: ORANGE,
    Stage.INIT.value: BLUE,
    Stage.RESTORE.value: YELLOW,
    Stage.GROUP.value: "#7A5195",
    Stage.SETUP.value: "#A6761D",
    Stage.WARMUP.value: PINK,
}
"""The parts of a restart, in their order."""


def failures() -> Sequence[AnyPanel]:
    """What broke, and the way back."""
    return (
        _restarts_by_cause(),
        _restarts_part_by_part(),
        _mean_part_of_a_restart(),
        _time_to_come_back(),
        _work_lost(),
        _time_until_noticed(),
        _how_it_came_back(),
        _alerts(),
        _injected_faults(),
    )


def _restarts_by_cause() -> AnyPanel:
    return chart(
        Place(
            "Restarts by cause",
            "Counted since the run began. Bad: exception or nonfinite (the script: read "
            "`logs/attempt-K` in the run's directory), hang (`incidents/K` has every rank's stack), the same "
            "cause at a steady pace (a part that has to be replaced).",
        ),
        [Query(f"{ONE.highest('restarts_total', 'cause')} > 0", "{{cause}}")],
        stairs=True,
    )


def _restarts_part_by_part() -> AnyPanel:
    return chart(
        Place(
            "Restarts, part by part",
            "Each stair is a restart, each colour a part of it, added up. Bad: detect is the tallest (shorten "
            "time-outs), init (imports: `--preload`), restore (a fast tier, or a faster storage), warmup "
            "(cache what is compiled).",
        ),
        [
            Query(
                ONE.highest("restart_phase_duration_seconds_sum", "phase", where=f'phase="{part}"'),
                part,
            )
            for part in PARTS
        ],
        "s",
        stacked=True,
        stairs=True,
        colors=PARTS,
    )


def _mean_part_of_a_restart() -> AnyPanel:
    return ranking(
        Place("Mean part of a restart", "What a restart is made of, on average over the run."),
        Query(ONE.mean("restart_phase_duration_seconds", "phase"), "{{phase}}"),
        colors=PARTS,
    )


def _time_to_come_back() -> AnyPanel:
    return chart(
        Place(
            "Time to come back",
            "From the last finished step to the first new one, and until the lost steps were done again: mean "
            "over the run and the slowest tenth of the last hour. Bad: regained_step far above first_step; "
            "saves are too far apart.",
        ),
        [
            Query(ONE.mean("restart_duration_seconds", "until"), "{{until}}, mean"),
            Query(
                ONE.quantile(0.9, "restart_duration_seconds", AN_HOUR, "until"),
                "{{until}}, p90",
            ),
        ],
        "s",
    )


def _work_lost() -> AnyPanel:
    return chart(
        Place(
            "Work lost",
            "Seconds and steps that were rolled back. Bad: tall stairs; the interval between saves is too long.",
        ),
        [
            Query(ONE.highest("lost_work_seconds_total"), "seconds"),
            Query(ONE.highest("lost_steps_total"), "steps"),
        ],
        stairs=True,
        colors={"seconds": VERMILLION, "steps": GREY},
    )


def _time_until_noticed() -> AnyPanel:
    return ranking(
        Place(
            "Time until noticed",
            "From an injected fault to its detection, mean by kind. Bad: over a few seconds; the time-outs "
            "are too generous (docs/hangs.md).",
        ),
        Query(ONE.mean("detection_latency_seconds", "fault"), "{{fault}}"),
    )


def _how_it_came_back() -> AnyPanel:
    return listing(
        Place(
            "How it came back",
            "Bad: burnt attempts (they ended before a step: look at the log of the last one), and manual "
            "interventions (someone had to start the run again; the launcher's last line says why).",
            10,
            4,
        ),
        [
            Column("by itself", ONE.highest("unattended_recoveries_total"), "none"),
            Column("by hand", ONE.highest("manual_interventions_total"), "none", BAD_IF_ANY),
            Column("burnt attempts", ONE.highest("burnt_restarts_total"), "none", BAD_IF_ANY),
            Column("MTBF", ONE.highest("mtbf_seconds", where='bound="estimate"'), "s"),
            Column("at least", ONE.highest("mtbf_seconds", where='bound="lower"'), "s"),
            Column("at most", ONE.highest("mtbf_seconds", where='bound="upper"'), "s"),
        ],
    )


def _alerts() -> AnyPanel:
    return listing(
        Place(
            "Alerts",
            "What fires now; docs/runbook.md says what to do about each. Empty is good.",
            8,
            4,
        ),
        [
            Column("alert", "alertname"),
            Column("severity", "severity"),
            Column("fires", ONE.alerts(), "none", BAD_IF_ANY),
        ],
    )


def _injected_faults() -> AnyPanel:
    return listing(
        Place("Injected faults", "What the injector did; also marked in every picture.", 6, 4),
        [
            Column("fault", "fault"),
            Column("on", "scope"),
            Column("times", ONE.highest("faults_injected_total", "fault", "scope"), "none"),
        ],
    )
