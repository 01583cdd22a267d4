"""What happened between two looks at a run, in lines for people: pure, from what the fold counts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.account import Account
from harness.events import Tier
from harness.recovery import Restart
from harness.report.spread import counted, duration
from harness.sightings import Fault, FaultState


@dataclass(frozen=True, slots=True)
class Seen:
    """What was there at a look."""

    faults: Mapping[str, FaultState]
    rejections: int
    failed_saves: Mapping[Tier, int]
    holder: int
    """The attempt that resumed last."""
    ranks: int
    """Its ranks; 0 where there was none."""
    comebacks: int


def seen(account: Account) -> Seen:
    """What there is now, to be compared at the next look."""
    return Seen(
        faults={fault.id: fault.state for fault in account.faults.records},
        rejections=sum(account.checkpoints.rejected.values()),
        failed_saves={tier: saves.failed for tier, saves in account.checkpoints.saves.items()},
        holder=account.holder,
        ranks=account.holder_ranks,
        comebacks=account.recovery.until_first_step.count,
    )


def news(before: Seen, account: Account) -> list[str]:
    """A line for each fault, rejected checkpoint, failed save, resume and return since `before`."""
    return [
        *_faults(before, account),
        *_rejections(before, account),
        *_failed_saves(before, account),
        *_resume(before, account),
        *_comebacks(before, account),
    ]


def _faults(before: Seen, account: Account) -> Iterator[str]:
    for fault in account.faults.records:
        was = before.faults.get(fault.id)
        if fault.state is was or (fault.state is FaultState.CONFIRMED and was is not None):
            continue
        yield f"fault {fault.id}: {_said(fault)}"


def _said(fault: Fault) -> str:
    what = f"{fault.kind} {fault.target}".strip()
    match fault.state:
        case FaultState.INJECTED | FaultState.CONFIRMED:
            return what
        case FaultState.LIFTED:
            return f"{what} is lifted"
        case FaultState.DEFERRED | FaultState.SKIPPED:
            return f"{fault.state.value}: {fault.detail}"


def _rejections(before: Seen, account: Account) -> Iterator[str]:
    new = sum(account.checkpoints.rejected.values()) - before.rejections
    for one in account.checkpoints.rejections[-new:] if new else ():
        yield (
            f"checkpoint of step {one.step}, attempt {one.saved_by}, is rejected"
            f" ({one.rejection.value}): {one.reason}; the next older one is tried"
        )


def _failed_saves(before: Seen, account: Account) -> Iterator[str]:
    for tier, saves in account.checkpoints.saves.items():
        new = saves.failed - before.failed_saves.get(tier, 0)
        if new:
            yield f"{counted(new, 'save')} to {tier.value} failed: training goes on without"


def _resume(before: Seen, account: Account) -> Iterator[str]:
    resumed, rollback = account.resumed, account.last_rollback
    if account.holder == before.holder or resumed is None or rollback is None:
        return
    lost = counted(rollback.lost_steps, "step")
    if resumed.tier is not None:
        origin = f"step {resumed.step}, from {resumed.tier.value}"
        yield f"attempt {account.holder} resumes after {origin}: {lost} lost"
        if before.ranks not in (0, account.holder_ranks):
            ranks = f"{counted(account.holder_ranks, 'rank')} instead of {before.ranks}"
            yield f"{ranks}: bits may differ from here on"
    elif before.holder >= 0:
        yield f"attempt {account.holder} begins from nothing: {lost} lost"


def _comebacks(before: Seen, account: Account) -> Iterator[str]:
    new = account.recovery.until_first_step.count - before.comebacks
    back = [one for one in account.recovery.records if one.first_step_at_ns is not None]
    for one in back[-new:] if new else ():
        yield f"back at work {_after(one)}"


def _after(one: Restart) -> str:
    since = "the last finished step" if one.last_step_at_ns is not None else "the failure"
    return f"{duration(one.recovery_ns or 0)} after {since}"
