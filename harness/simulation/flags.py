"""The flags of `harness simulate`, with their help, and the job that they make together."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from harness.commands import Whole
from harness.quantities import checked, duration_s
from harness.simulation import asked as asking
from harness.simulation.asked import Asked
from harness.simulation.draws import valid_seed
from harness.simulation.presets import PRESETS, Preset

DAYS = 30.0
MOST_SEEDS = 1_000_000
MOST_FAILURES = 10_000_000
"""In one run: all of them are held in memory at once."""

Duration = Annotated[str, Parameter(allow_leading_hyphen=True)]
"""A duration may be mistyped as a negative one; it is told so like any other mistake."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What people type."""

    preset: str = ""
    """A published job, llama3 or llama3-100k; other flags override its figures."""
    mtbf: Duration = ""
    """Mean time between failures of the whole JOB while it is up, not of a device: 3.1h."""
    save: Duration = ""
    """How long a save blocks training: 33s."""
    restart: Duration = ""
    """From a failure until training is back, 10min; or in parts: teardown=5s,init=2min,restore=4min."""
    tau: Duration = ""
    """Intervals of work between saves to try, 4,8,16min. Default: around the best one, or the preset's."""
    days: float | None = None
    """Length of each run. Default: 30, or the preset's."""
    seeds: Annotated[int, Whole] = 20
    """Runs at each interval."""
    first_seed: Annotated[int, Whole] = 1
    """The first run's; the others follow it."""
    law: str = "exponential"
    """Law of the gaps between failures: exponential, weibull:SHAPE, lognormal:CV."""
    trace: Path | None = None
    """Failures seen elsewhere: CSV (column at_s, at_min, at_h or at_d) or InfiniteHBD's JSON. --mtbf stretches them."""
    racks: str = ""
    """Nodes that fail alone and by the rack: nodes,per-rack,node-mtbf,rack-mtbf."""
    lemons: str = ""
    """Nodes of unequal quality: nodes,share,times-worse[,replaced-after]."""
    detection: Duration = "0s"
    """From a failure until it is noticed."""
    restart_spread: float = 0.0
    """Standard deviation of each part of a restart over its mean (log-normal)."""
    failures_in_restarts: Annotated[bool, Parameter(negative="")] = False
    """Failures strike during restarts too."""
    commit: Duration = "0s"
    """From the end of a save's stall until the save is durable."""
    memory_tier: str = ""
    """A fast tier beside storage: interval,save,restart,share-of-failures-it-serves: 5min,3s,2min,0.8."""
    maintenance: str = ""
    """Planned: every,down: 7d,4h."""
    stragglers: str = ""
    """Each step waits for the slowest: devices,noise[,slow-share,slowdown]: 16384,0.02,0.0001,1.5."""
    corruption: str = ""
    """Silent, noticed late: mean-gap,mean-lag: 14d,6h."""
    spares: str = ""
    """Nodes that stand by: count,mean-repair: 64,2d. Without: always enough."""
    figure: Path | None = None
    """Draw the table to this file (.svg, .png, .pdf); needs matplotlib."""
    run: Path | None = None
    """Write the first run, at the best interval, to this directory: `harness report` opens it."""
    json: Annotated[bool, Parameter(negative="")] = False
    """One JSON object instead of the table."""
    check_vectors: Path | None = None
    """Only compare the simulator with a file of reference outputs; exit status 1 if they differ."""


NOTHING_ASKED = Flags()


def preset(flags: Flags) -> Preset | None:
    """The published job that was named, if one was. Raises `ValueError` for a name without any."""
    if flags.preset and flags.preset not in PRESETS:
        raise ValueError(f"unknown preset {flags.preset!r}; known: {', '.join(PRESETS)}")
    return PRESETS.get(flags.preset)


def job(flags: Flags) -> Asked:
    """The job that the flags make. Raises `ValueError`, one line, for what cannot be one."""
    known = preset(flags)
    figures = {"mtbf": flags.mtbf, "save": flags.save, "restart": flags.restart}
    if known is not None:
        there = {"mtbf": known.mtbf, "save": known.save, "restart": known.restart}
        figures = {name: text or there[name] for name, text in figures.items()}
    if missing := [f"--{name}" for name in ("save", "restart") if not figures[name]]:
        raise ValueError(
            f"{' and '.join(missing)} missing: nobody can guess, give them or --preset"
        )
    save_s = checked("--save", duration_s(figures["save"]), at_least=0)
    restart_s, stages = asking.restart(figures["restart"])
    mtbf_s = _mtbf_s(figures["mtbf"], save_s)
    ways = asking.failures(mtbf_s, flags.law, flags.trace, flags.racks, flags.lemons)
    mean_s = asking.mean_s(ways)
    days = checked("--days", _days(flags, known), above=0)
    if mean_s is not None and days * 86_400 > MOST_FAILURES * (mean_s + restart_s):
        raise ValueError(
            f"--days {days:g} has more than {MOST_FAILURES:,} failures, one every {mean_s:g} s: give"
            " fewer days"
        )
    return Asked(
        mtbf_s=mean_s,
        save_s=save_s,
        restart_s=restart_s,
        horizon_s=86_400 * days,
        intervals_s=_intervals_s(flags, known, save_s, mean_s),
        seeds=_seeds(flags),
        failures=ways,
        options=asking.options(
            stages=stages,
            restart_s=restart_s,
            restart_spread=checked("--restart-spread", flags.restart_spread, at_least=0),
            detection=flags.detection,
            commit=flags.commit,
            in_restarts=flags.failures_in_restarts,
            memory_tier=flags.memory_tier,
            maintenance=flags.maintenance,
            stragglers=flags.stragglers,
            corruption=flags.corruption,
            spares=flags.spares,
        ),
    )


def _mtbf_s(text: str, save_s: float) -> float | None:
    if not text:
        return None
    mtbf_s = checked("--mtbf", duration_s(text), above=0)
    if mtbf_s <= save_s:
        raise ValueError(
            f"--mtbf {text} is no longer than a save ({save_s:g} s): hardly a save would ever end;"
            " give the mean time between failures of the job, and how long a save blocks it"
        )
    return mtbf_s


def _days(flags: Flags, known: Preset | None) -> float:
    if flags.days is not None:
        return flags.days
    return DAYS if known is None else known.days


def _seeds(flags: Flags) -> range:
    checked("--seeds", flags.seeds, at_least=1, at_most=MOST_SEEDS)
    last = valid_seed(flags.first_seed) + flags.seeds - 1
    return range(flags.first_seed, valid_seed(last) + 1)


def _intervals_s(
    flags: Flags, known: Preset | None, save_s: float, mtbf_s: float | None
) -> list[float]:
    if flags.tau:
        return asking.intervals_s(flags.tau)
    figures = (flags.mtbf, flags.save, flags.racks, flags.trace)
    if known is not None and not any(figures):
        return asking.intervals_s(known.intervals)
    if mtbf_s is None:
        raise ValueError("--tau missing: without a mean time between failures, say what to try")
    if save_s == 0:
        raise ValueError(
            "--tau missing: a save that costs nothing has no best interval, say what to try"
        )
    return asking.around_s(save_s, mtbf_s)
