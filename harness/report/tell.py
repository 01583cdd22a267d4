"""Draws a `Report` from a timeline: pure, so that the same log always makes the same report."""

from collections.abc import Mapping, Sequence

from harness.account import Account
from harness.events import Tier
from harness.goodput import split
from harness.phases import Phase
from harness.recovery import UNKNOWN_CAUSE, Restart
from harness.report.model import Report, Standing
from harness.report.planned import Planned
from harness.report.records import Checkpoints, Comeback, FaultFate
from harness.report.slowness import Slowness
from harness.report.throughput import Throughput
from harness.saves import Saves
from harness.sightings import Fault
from harness.timeline import Timeline

_REASONS = {Standing.LOST: "its launcher died without a word"}


def tell(
    of: Timeline,
    *,
    is_led: bool,
    final_digest: str | None = None,
    run_id: str = "",
    tape: Sequence[Planned] = (),
    notes: Sequence[str] = (),
) -> Report:
    """What there is to say; `is_led` says that a launcher lives, `run_id` is for a run without entries."""
    account = of.account
    standing = _standing(account, is_led)
    failures = _failures(account)
    led = {fault: number for number, one in failures for fault in one.faults}
    return Report(
        standing=standing,
        reason=account.outcome_reason or _REASONS.get(standing, ""),
        run_id=account.run_id or run_id,
        tool=account.tool,
        world_size=account.world_size,
        phase=(Phase.DOWN if standing is Standing.LOST else account.phase).value,
        attempts=account.attempts,
        lives=account.lives,
        interventions=account.interventions,
        split=split(of),
        unsettled_ns=sum(one.duration_ns for one in account.unsettled(account.at_ns)),
        step=account.step,
        useful_steps=account.ledger.useful_steps,
        redone_steps=account.ledger.redone_steps,
        lost_steps=account.ledger.lost_steps,
        tokens=account.tokens_useful + account.tokens_redone,
        restarts=sum(account.recovery.restarts.values()),
        burnt=account.recovery.burnt,
        comebacks=_comebacks(account, failures),
        faults=_fates(account, tape, led),
        checkpoints=_checkpoints(account),
        loss=account.loss,
        validations=tuple(account.validations),
        findings=account.findings,
        final_digest=final_digest,
        segments=of.segments,
        helpers=account.helpers,
        notes=tuple(notes),
        slowness=Slowness.of(account.stragglers),
        throughput=_throughput(account),
    )


def _standing(account: Account, is_led: bool) -> Standing:
    if account.start_ns is None:
        return Standing.GOING if is_led else Standing.EMPTY
    if account.outcome is None:
        return Standing.GOING if is_led else Standing.LOST
    return Standing(account.outcome.value)


def _failures(account: Account) -> list[tuple[int, Restart]]:
    """The newest of a run's failures, each with its number among all of them; the first is 1."""
    kept = account.recovery.records
    return list(enumerate(kept, sum(account.recovery.failures.values()) - len(kept) + 1))


def _throughput(account: Account) -> Throughput:
    tokens = account.tokens_useful + account.tokens_redone
    worked_ns = account.totals[Phase.WORK]
    return Throughput(tokens, worked_ns, account.world_size, account.speed.arithmetic)


def _comebacks(account: Account, failures: Sequence[tuple[int, Restart]]) -> list[Comeback]:
    injected_ns = {fault.id: fault.injected_at_ns for fault in account.faults.records}
    return [_comeback(number, one, injected_ns) for number, one in failures]


def _comeback(number: int, one: Restart, injected_ns: Mapping[str, int | None]) -> Comeback:
    hits_ns = [ns for fault in one.faults if (ns := injected_ns.get(fault)) is not None]
    since_fault_ns = None
    if hits_ns and one.first_step_at_ns is not None:
        since_fault_ns = one.first_step_at_ns - min(hits_ns)
    return Comeback(
        number=number,
        attempt=one.attempt,
        failed_at_ns=one.failed_at_ns,
        cause=UNKNOWN_CAUSE if one.cause is None else one.cause.value,
        rank=one.rank,
        reason=one.reason,
        duration_ns=one.recovery_ns,
        since_fault_ns=since_fault_ns,
        regaining_ns=one.regaining_ns,
        lost_steps=one.lost_steps,
        lost_ns=one.lost_ns,
        resumed_step=one.resumed_step,
        tier="" if one.tier is None else one.tier.value,
        burnt=one.burnt,
        faults=one.faults,
        stages_ns=one.phases,
    )


def _fates(account: Account, tape: Sequence[Planned], led: Mapping[str, int]) -> list[FaultFate]:
    """What was said of each fault, in the order of the tape; then those that are on no tape."""
    said = {fault.id: fault for fault in account.faults.records}
    on_tape = {one.id: one for one in tape}
    return [
        _fate(said.get(name), on_tape.get(name), account.start_ns or 0, led.get(name))
        for name in dict.fromkeys([*on_tape, *said])
    ]


def _fate(
    said: Fault | None, on_tape: Planned | None, start_ns: int, comeback: int | None
) -> FaultFate:
    known = said or on_tape
    assert known is not None
    injected_ns = None if said is None else said.injected_at_ns
    return FaultFate(
        id=known.id,
        kind=known.kind if on_tape is None else on_tape.kind,
        target=known.target if on_tape is None else on_tape.target,
        tape_s=None if on_tape is None else on_tape.tape_s,
        at_ns=None if injected_ns is None else injected_ns - start_ns,
        state="planned" if said is None else said.state.value,
        deferred=said is not None and said.deferred,
        detail="" if said is None else said.detail,
        comeback=comeback,
    )


def _checkpoints(account: Account) -> Checkpoints:
    tiers = account.checkpoints.saves
    stored, kept = tiers.get(Tier.STORAGE, Saves()), tiers.get(Tier.MEMORY, Saves())
    return Checkpoints(
        committed=stored.committed,
        failed=stored.failed + kept.failed,
        rejected=[
            f"step {one.step} of attempt {one.saved_by} ({one.rejection.value}): {one.reason}"
            for one in account.checkpoints.rejections
        ],
        last_step=stored.last_step,
        bytes=stored.bytes,
        stall_ns=account.totals[Phase.SAVE_STALL],
        commits=stored.commits.count,
        commit_ns=stored.commits.total_ns,
        intervals=account.intervals,
        copies=kept.committed,
    )
