"""What each metric's value is, given everything that is known of a run at one moment: pure.

What is not known gives no sample, and never a zero. Counters are there from the start, for one that
appears with its first count hides that count from whoever takes a rate.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version

from harness import metrics
from harness.events import Cause
from harness.goodput import split
from harness.histogram import Histogram
from harness.phases import Phase
from harness.present import Present, Values, by_rank, one
from harness.recovery import UNKNOWN_CAUSE, Stage
from harness.reliability import failures_seen
from harness.saved import DRAW_SAVED
from harness.sightings import Scope
from harness.signals.drawn import DRAW_SLOW
from harness.signals.samples import DRAW_HEALTH
from harness.tallies import Low

_NS = 1_000_000_000


def _by_state(times_ns: Mapping[Phase, int]) -> Values:
    return {(phase.value,): ns / _NS for phase, ns in times_ns.items()}


@cache
def _version() -> str:
    return version("resilience-harness")


def _run_info(now: Present) -> Values:
    size = str(now.account.world_size)
    return {(_version(), size, "ddp", now.device): 1.0}


def _run_start(now: Present) -> Values:
    start_ns = now.account.start_ns
    return one(None if start_ns is None else start_ns / _NS)


def _goodput(now: Present) -> Values:
    of = split(now.account)
    return one(of.goodput if of.wall_ns else None)


def _steps(now: Present) -> Values:
    ledger = now.account.ledger
    return {("useful",): ledger.useful_steps, ("redone",): ledger.redone_steps}


def _tokens(now: Present) -> Values:
    return {("useful",): now.account.tokens_useful, ("redone",): now.account.tokens_redone}


def _restarts(now: Present) -> Values:
    none = {cause.value: 0 for cause in Cause} | {UNKNOWN_CAUSE: 0}
    return {(cause,): n for cause, n in (none | now.account.recovery.restarts).items()}


def _restart_durations(now: Present) -> Values:
    recovery = now.account.recovery
    return {
        ("first_step",): recovery.until_first_step,
        ("regained_step",): recovery.until_regained,
    }


def _restart_phases(now: Present) -> Values:
    stages = now.account.recovery.stages
    return {(stage.value,): stages.get(stage, Histogram()) for stage in Stage}


def _progress(now: Present) -> Values:
    """Told of a dead run too: when each rank last got on is what is asked then."""
    return by_rank(
        {rank: (slot.updated_ns + now.boot_ns) / _NS for rank, slot in now.slots.items()},
        slow_is_low=True,
    )


def _rank_info(now: Present) -> Values:
    known = {rank: of for rank, of in now.account.ranks.items() if rank < now.account.world_size}
    return {
        (str(rank), "" if of.local_rank is None else str(of.local_rank), of.node, of.gpu_uuid): 1.0
        for rank, of in known.items()
    }


def _faults(now: Present) -> Values:
    none: dict[tuple[str, ...], float] = {(kind, scope.value): 0 for kind, scope in now.planned}
    injected = now.account.faults.injected.items()
    return none | {(kind, scope.value): n for scope, of in injected for kind, n in of.items()}


def _detections(now: Present) -> Values:
    """What spoils a call to the storage is over with it, and detected by nobody."""
    kinds = [kind for kind, scope in now.planned if scope is not Scope.STORAGE]
    none: dict[tuple[str, ...], Histogram] = {(kind,): Histogram() for kind in kinds}
    return none | {(kind,): of for kind, of in now.account.faults.detections.items()}


def _reached(now: Present, tell: Callable[[Low], float]) -> Values:
    found = {target: now.account.lows.first(target) for target in now.targets}
    return {(f"{target:.12g}",): tell(low) for target, low in found.items() if low is not None}


def _mtbf(now: Present) -> Values:
    seen = failures_seen(now.account)
    if seen is None:
        return {}
    bounds = {
        "estimate": seen.mtbf_s,
        "lower": seen.mtbf_at_least_s(),
        "upper": seen.mtbf_at_most_s(),
    }
    return {(bound,): value for bound, value in bounds.items() if value is not None}


DRAW: Mapping[str, Callable[[Present], Values]] = {
    metrics.RUN_INFO.name: _run_info,
    metrics.RUN_START.name: _run_start,
    metrics.PHASE.name: lambda now: {(p.value,): float(p is now.phase) for p in Phase},
    metrics.LAUNCHER_UP.name: lambda now: one(float(now.is_led)),
    metrics.STATE_SECONDS.name: lambda now: _by_state(now.account.totals),
    metrics.RANK_SECONDS.name: lambda now: _by_state(now.account.rank_totals),
    metrics.LOST_WORK.name: lambda now: one(now.account.lost_ns / _NS),
    metrics.LOST_STEPS.name: lambda now: one(now.account.ledger.lost_steps),
    metrics.GOODPUT.name: _goodput,
    metrics.STEPS.name: _steps,
    metrics.TOKENS.name: _tokens,
    metrics.STEP_DURATION.name: lambda now: {(): now.account.step_durations},
    metrics.STEP.name: lambda now: one(now.account.step),
    metrics.RESTARTS.name: _restarts,
    metrics.BURNT_RESTARTS.name: lambda now: one(now.account.recovery.burnt),
    metrics.RECOVERIES.name: lambda now: one(now.account.recovery.until_first_step.count),
    metrics.INTERVENTIONS.name: lambda now: one(now.account.interventions),
    metrics.RESTART_DURATION.name: _restart_durations,
    metrics.RESTART_PHASE_DURATION.name: _restart_phases,
    **DRAW_SAVED,
    metrics.RANK_INFO.name: _rank_info,
    metrics.RANK_PROGRESS.name: _progress,
    **DRAW_SLOW,
    metrics.RANK_UP.name: lambda now: {(str(r),): float(up) for r, up in enumerate(now.up)},
    metrics.LOSS.name: lambda now: one(now.account.loss),
    metrics.VALIDATION_LOSS.name: lambda now: one(
        None if now.account.validation is None else now.account.validation.value
    ),
    metrics.TARGET_STEPS.name: lambda now: _reached(now, lambda low: low.step),
    metrics.TARGET_SECONDS.name: lambda now: _reached(now, lambda low: low.wall_ns / _NS),
    **DRAW_HEALTH,
    metrics.FAULTS.name: _faults,
    metrics.DETECTION_LATENCY.name: _detections,
    metrics.MTBF.name: _mtbf,
}
"""How each family of the table is drawn, by name."""
