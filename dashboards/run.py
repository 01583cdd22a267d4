"""The dashboard of one run, first half: what it is doing, where its time goes, what broke, what is saved."""

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
    Column,
    Place,
    Query,
    chart,
    figure,
    listing,
    ranking,
    strip,
)
from dashboards.queries import AN_HOUR, LATELY, ONE, coded
from harness.phases import Phase
from harness.recovery import Stage

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
_PHASES = [(phase.value, color) for phase, color in COLORS.items()]
_NOW = coded("phase", "phase", [name for name, _ in _PHASES])
_BAD_IF_ANY = ((None, GREEN), (1, VERMILLION))


def now() -> Sequence[AnyPanel]:
    """What one sees first."""
    return (
        figure(
            Place(
                "Now",
                "What the job is doing. Bad: `down` without an end; see that `harness run` lives.",
                3,
                4,
            ),
            Query(f"max({_NOW})"),
            names=_PHASES,
        ),
        figure(
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
        ),
        figure(
            Place("Step", "The last finished step that the run holds.", 3, 4),
            Query(ONE.highest("step")),
        ),
        figure(
            Place("Ranks up", "Ranks whose process lives. Bad: fewer than the job has.", 3, 4),
            Query(f"sum(max by (rank) ({ONE.all('rank_up')}))"),
        ),
        figure(
            Place(
                "Restarts",
                "Failures after which another attempt began. Bad: more each hour; see the causes below.",
                3,
                4,
            ),
            Query(f"sum({ONE.highest('restarts_total', 'cause')})"),
            steps=((None, GREEN), (1, ORANGE)),
        ),
        figure(
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
        ),
        figure(
            Place(
                "Since the last commit",
                "What a loss of the machine would cost now. Bad: several intervals; look at failed saves below.",
                3,
                4,
            ),
            Query(f"time() - {ONE.highest('checkpoint_last_timestamp_seconds', where=_STORED)}"),
            "s",
            decimals=0,
        ),
        figure(
            Place(
                "Launcher up",
                "1 while a launcher leads the run. Bad: 0, for nobody restarts it then.",
                3,
                4,
            ),
            Query(ONE.highest("launcher_up")),
            steps=((None, VERMILLION), (1, GREEN)),
        ),
    )


_STORED = 'tier="storage"'


def time() -> Sequence[AnyPanel]:
    """Where the time goes."""
    return (
        strip(
            Place(
                "Phases",
                "What the job was doing when. Bad: stripes of vermillion (nobody has noticed yet) and orange "
                "(coming back); the rows below say why.",
                24,
                4,
            ),
            [Query(f"max({_NOW})", "job")],
            _PHASES,
        ),
        chart(
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
        ),
        chart(
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
        ),
        ranking(
            Place(
                "Time since the run began",
                "Seconds by what the job was doing; they sum to its age.",
            ),
            Query(f"sort_desc({ONE.highest('state_seconds_total', 'state')})", "{{state}}"),
            colors=STATES,
        ),
    )


def failures() -> Sequence[AnyPanel]:
    """What broke, and the way back."""
    return (
        chart(
            Place(
                "Restarts by cause",
                "Counted since the run began. Bad: exception or nonfinite (the script: read "
                "`logs/attempt-K` in the run's directory), hang (`incidents/K` has every rank's stack), the same "
                "cause at a steady pace (a part that has to be replaced).",
            ),
            [Query(f"{ONE.highest('restarts_total', 'cause')} > 0", "{{cause}}")],
            stairs=True,
        ),
        chart(
            Place(
                "Restarts, part by part",
                "Each stair is a restart, each colour a part of it, added up. Bad: detect is the tallest (shorten "
                "time-outs), init (imports: `--preload`), restore (a fast tier, or a faster storage), warmup "
                "(cache what is compiled).",
            ),
            [
                Query(
                    ONE.highest(
                        "restart_phase_duration_seconds_sum", "phase", where=f'phase="{part}"'
                    ),
                    part,
                )
                for part in PARTS
            ],
            "s",
            stacked=True,
            stairs=True,
            colors=PARTS,
        ),
        ranking(
            Place("Mean part of a restart", "What a restart is made of, on average over the run."),
            Query(ONE.mean("restart_phase_duration_seconds", "phase"), "{{phase}}"),
            colors=PARTS,
        ),
        chart(
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
        ),
        chart(
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
        ),
        ranking(
            Place(
                "Time until noticed",
                "From an injected fault to its detection, mean by kind. Bad: over a few seconds; the time-outs "
                "are too generous (docs/hangs.md).",
            ),
            Query(ONE.mean("detection_latency_seconds", "fault"), "{{fault}}"),
        ),
        listing(
            Place(
                "How it came back",
                "Bad: burnt attempts (they ended before a step: look at the log of the last one), and manual "
                "interventions (someone had to start the run again; the launcher's last line says why).",
                16,
                4,
            ),
            [
                Column("by itself", ONE.highest("unattended_recoveries_total"), "none"),
                Column("by hand", ONE.highest("manual_interventions_total"), "none", _BAD_IF_ANY),
                Column("burnt attempts", ONE.highest("burnt_restarts_total"), "none", _BAD_IF_ANY),
                Column("MTBF", ONE.highest("mtbf_seconds", where='bound="estimate"'), "s"),
                Column("at least", ONE.highest("mtbf_seconds", where='bound="lower"'), "s"),
                Column("at most", ONE.highest("mtbf_seconds", where='bound="upper"'), "s"),
            ],
        ),
        listing(
            Place("Injected faults", "What the injector did; also marked in every picture.", 8, 4),
            [
                Column("fault", "fault"),
                Column("on", "scope"),
                Column("times", ONE.highest("faults_injected_total", "fault", "scope"), "none"),
            ],
        ),
    )
