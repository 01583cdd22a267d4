"""What each metric's value is, given everything that is known of a run at one moment: pure.

What is not known gives no sample, and never a zero. Counters are there from the start, for one that
appears with its first count hides that count from whoever takes a rate.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median_low

from harness import metrics
from harness.account import Account
from harness.events import Cause, Rejection, Tier
from harness.goodput import split
from harness.histogram import Histogram
from harness.phases import Phase
from harness.recovery import Stage
from harness.slots import Slot

Values = Mapping[tuple[str, ...], float | Histogram]
"""By the family's own labels."""

_NS = 1_000_000_000
_SCOPES = {"rank": "rank", "node": "node", "store": "storage", "network": "network"}
"""What a fault acts on, by the first word of its target."""


@dataclass(frozen=True, slots=True)
class Present:
    """Everything that a scrape says, as it was read."""

    job_name: str
    run_id: str
    device: str
    account: Account
    is_led: bool
    """A launcher lives."""
    up: Sequence[bool]
    """By rank: whether its process lives."""
    slots: Mapping[int, Slot]
    """By rank: of the newest attempt alone."""

    @property
    def phase(self) -> Phase:
        """What the run is doing: a log alone would say `work` for ever once all have been killed."""
        if self.account.phase is Phase.FINISHED or self.is_led:
            return self.account.phase
        return Phase.DOWN


def _one(value: float | None) -> Values:
    """A family without labels of its own."""
    return {} if value is None else {(): value}


def _by_state(times_ns: Mapping[Phase, int]) -> Values:
    return {(phase.value,): ns / _NS for phase, ns in times_ns.items()}


def _run_info(now: Present) -> Values:
    size = str(now.account.world_size)
    return {(version("resilience-harness"), size, "ddp", now.device): 1.0}


def _run_start(now: Present) -> Values:
    start_ns = now.account.start_ns
    return _one(None if start_ns is None else start_ns / _NS)


def _goodput(now: Present) -> Values:
    of = split(now.account)
    return _one(of.goodput if of.wall_ns else None)


def _steps(now: Present) -> Values:
    ledger = now.account.ledger
    return {("useful",): ledger.useful_steps, ("redone",): ledger.redone_steps}


def _tokens(now: Present) -> Values:
    return {("useful",): now.account.tokens_useful, ("redone",): now.account.tokens_redone}


def _restarts(now: Present) -> Values:
    none = {cause.value: 0 for cause in Cause}
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


def _saves(now: Present) -> Values:
    values: dict[tuple[str, ...], float] = {}
    for tier in _tiers(now):
        saves = now.account.checkpoints.saves[tier]
        values[tier.value, "committed"] = saves.committed
        values[tier.value, "failed"] = saves.failed
    return values


def _rejected(now: Present) -> Values:
    found = now.account.checkpoints.rejected
    return {(rejection.value,): found.get(rejection, 0) for rejection in Rejection}


def _last_steps(now: Present) -> Values:
    saves = now.account.checkpoints.saves
    return {
        (tier.value,): step for tier in _tiers(now) if (step := saves[tier].last_step) is not None
    }


def _last_times(now: Present) -> Values:
    saves = now.account.checkpoints.saves
    return {
        (tier.value,): saves[tier].last_at_ns / _NS for tier in _tiers(now) if saves[tier].committed
    }


def _tiers(now: Present) -> list[Tier]:
    return [tier for tier in Tier if tier in now.account.checkpoints.saves]


def _stragglers(now: Present) -> Values:
    """Only while the run is led: of a dead run nobody is late."""
    own_ns = {rank: slot.own_ns for rank, slot in now.slots.items() if slot.own_ns > 0}
    if not now.is_led or not own_ns:
        return {}
    usual_ns = median_low(own_ns.values())
    return {(str(rank),): (ns - usual_ns) / _NS for rank, ns in own_ns.items()}


def _faults(now: Present) -> Values:
    faults = now.account.faults
    scopes = {one.kind: _SCOPES.get(one.target.split(" ")[0], "rank") for one in faults.records}
    return {(kind, scopes.get(kind, "rank")): count for kind, count in faults.injected.items()}


DRAW: Mapping[str, Callable[[Present], Values]] = {
    metrics.RUN_INFO.name: _run_info,
    metrics.RUN_START.name: _run_start,
    metrics.PHASE.name: lambda now: {(p.value,): float(p is now.phase) for p in Phase},
    metrics.LAUNCHER_UP.name: lambda now: _one(float(now.is_led)),
    metrics.STATE_SECONDS.name: lambda now: _by_state(now.account.totals),
    metrics.RANK_SECONDS.name: lambda now: _by_state(now.account.rank_totals),
    metrics.LOST_WORK.name: lambda now: _one(now.account.lost_ns / _NS),
    metrics.LOST_STEPS.name: lambda now: _one(now.account.ledger.lost_steps),
    metrics.GOODPUT.name: _goodput,
    metrics.STEPS.name: _steps,
    metrics.TOKENS.name: _tokens,
    metrics.STEP.name: lambda now: _one(now.account.step),
    metrics.RESTARTS.name: _restarts,
    metrics.BURNT_RESTARTS.name: lambda now: _one(now.account.recovery.burnt),
    metrics.RECOVERIES.name: lambda now: _one(now.account.recovery.until_first_step.count),
    metrics.INTERVENTIONS.name: lambda now: _one(now.account.interventions),
    metrics.RESTART_DURATION.name: _restart_durations,
    metrics.RESTART_PHASE_DURATION.name: _restart_phases,
    metrics.SAVES.name: _saves,
    metrics.REJECTED.name: _rejected,
    metrics.LAST_SAVE_STEP.name: _last_steps,
    metrics.LAST_SAVE_TIME.name: _last_times,
    metrics.STRAGGLER_DELAY.name: _stragglers,
    metrics.RANK_UP.name: lambda now: {(str(r),): float(up) for r, up in enumerate(now.up)},
    metrics.LOSS.name: lambda now: _one(now.account.loss),
    metrics.VALIDATION_LOSS.name: lambda now: _one(
        None if now.account.validation is None else now.account.validation.value
    ),
    metrics.FAULTS.name: _faults,
}
"""How each family of the table is drawn, by name."""
