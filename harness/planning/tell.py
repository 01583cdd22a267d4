"""What `harness plan` prints: rates, goodput, losses, levers, and what each figure rests on."""

from collections.abc import Iterator

from harness.fleet import Level
from harness.planner import Needs
from harness.planning.asked import Asked, Rate
from harness.planning.levers import SERVED, Lever, best
from harness.planning.plan import Outlook, Plan, Row, lost_per_day
from harness.planning.words import counted_rate, duration, table
from harness.theory import FLAT_POINTS

UNKNOWN = "UNKNOWN"
LONGEST_LIFE_S = 200 * 31_557_600.0
"""No device is known to fail less often than once in so long."""


def told(plan: Plan) -> str:
    """The plan for people."""
    parts = [_rates(plan.asked), _sizes(plan), _calendar(plan)]
    if not plan.missing:
        parts += [_losses(plan), _levers(plan), _targets(plan)]
    parts.append(_footing(plan))
    blocks = ["\n".join(part) for part in parts]
    return "\n\n".join(block for block in blocks if block) + "\n"


# ── how often it fails ──────────────────────────────────────────────────────────────────────────


def _rates(asked: Asked) -> Iterator[str]:
    rate = asked.rate
    if rate is None:
        yield f"how often it fails: {UNKNOWN} (--mtbf-per-gpu, --mtbf-per-node or --mtbf-job missing)"
        return
    if rate.known is not None:
        yield from _counted(rate)
        return
    match rate.level:
        case Level.DEVICE:
            yield f"each GPU fails once in {_and_hours(rate.mtbf_s)}"
        case Level.NODE:
            nodes = f"nodes of {rate.per_node} GPUs: a failure of a node is one of the job"
            yield f"each node fails once in {_and_hours(rate.mtbf_s)} ({nodes})"
        case Level.JOB:
            each_s = rate.mtbf_s * asked.sizes[0]
            yield f"the job fails once in {_and_hours(rate.mtbf_s)}, each GPU once in {duration(each_s)}"
            if each_s > LONGEST_LIFE_S:
                yield f"  no GPU lasts that long: if {_and_hours(rate.mtbf_s)} is ONE GPU's, say --mtbf-per-gpu"


def _counted(rate: Rate) -> Iterator[str]:
    """What was counted; of runs that is told before the plan."""
    known = rate.known
    assert known is not None
    if rate.level is Level.JOB:
        yield counted_rate(known, "the job")
    else:
        least_s, most_s = known.mtbf_at_least_s(), known.mtbf_at_most_s()
        most = "" if most_s is None else f" and less than {duration(most_s)}"
        yield f"each GPU fails once in more than {duration(least_s)}{most}"
    if rate.is_bound:
        yield "everything below is at that bound: it will be as good as this, or better"


def _and_hours(mtbf_s: float) -> str:
    hours = f"{mtbf_s / 3600:,.0f} h"
    return duration(mtbf_s) if mtbf_s < 2 * 86_400 else f"{duration(mtbf_s)} ({hours})"


# ── the sizes ───────────────────────────────────────────────────────────────────────────────────


def _sizes(plan: Plan) -> Iterator[str]:
    days = f"±sd {plan.asked.horizon_s / 86_400:g} d"
    heads = ["GPUs", "fails every", "save", "interval", "as good", "goodput", days]
    rows = [heads, *(_size(plan, row) for row in plan.rows)]
    yield from table(rows, left=0)
    for name in plan.missing:
        yield f"goodput {UNKNOWN}: {name} missing"
    yield from _within(plan)


def _within(plan: Plan) -> Iterator[str]:
    """What the uncertainty of the failure rate makes of goodput."""
    for row in plan.rows:
        if row.outlook is None or row.outlook.goodput_within is None:
            continue
        low, high = row.outlook.goodput_within
        known = f"{low:.1%} to {high:.1%} (90 %)" if high < 1 else f"over {low:.1%} (95 %)"
        yield f"{row.gpus:,} GPUs, for what is known of the failure rate: goodput {known}"


def _size(plan: Plan, row: Row) -> list[str]:
    bound = "> " if plan.asked.rate is not None and plan.asked.rate.is_bound else ""
    every = UNKNOWN if row.mtbf_s is None else f"{bound}{duration(row.mtbf_s)}"
    known = [f"{row.gpus:,}", every, _known(row.save_s), _known(row.interval_s)]
    if row.outlook is None:
        return [*known, *[UNKNOWN] * 3]
    one = row.outlook
    alike = one.expected.alike_s
    return [
        *known,
        "–" if alike is None else f"{duration(alike[0])}–{duration(alike[1])}",
        f"{bound}{one.expected.goodput:.1%}",
        f"{100 * one.sd:.2f}",
    ]


def _known(value_s: float | None) -> str:
    return UNKNOWN if value_s is None else duration(value_s)


def _calendar(plan: Plan) -> Iterator[str]:
    training = plan.asked.training
    if training is None:
        return
    at = f"{training.flops:.3g} FLOPs at {training.flops_per_gpu_s / 1e12:g} TFLOP/s on each GPU"
    yield f"{at}:"
    for row in plan.rows:
        assert row.calendar_s is not None
        bare = f"{row.gpus:,} GPUs: {row.calendar_s / 86_400:.1f} days of uninterrupted compute"
        if row.outlook is None:
            yield f"  {bare}; with failures {UNKNOWN}"
        else:
            goodput = row.outlook.expected.goodput
            days = row.calendar_s / goodput / 86_400
            yield f"  {bare}; {days:.1f} days at goodput {goodput:.1%}"


def _outlooks(plan: Plan) -> list[Outlook]:
    return [row.outlook for row in plan.rows if row.outlook is not None]


# ── what is lost, and what would help ───────────────────────────────────────────────────────────


def _losses(plan: Plan) -> Iterator[str]:
    price = plan.asked.price
    yield "lost a day, in GPU-hours"
    yield from _loss_table(plan, 1.0)
    if price is not None:
        yield f"the same in money, at {price:g} a GPU-hour"
        yield from _loss_table(plan, price)


def _loss_table(plan: Plan, each: float) -> list[str]:
    rows = [["GPUs", *lost_per_day(plan.rows[0]), "sum"]]
    for row in plan.rows:
        lost = list(lost_per_day(row).values())
        rows.append([f"{row.gpus:,}", *(_amount(one * each) for one in (*lost, sum(lost)))])
    return table(rows, left=0)


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _levers(plan: Plan) -> Iterator[str]:
    yield "what each lever would add, in points of goodput"
    by_size = [(row, row.outlook.levers) for row in plan.rows if row.outlook is not None]
    names = [lever.name for lever in by_size[0][1]]
    rows = [["", *(f"{row.gpus:,}" for row, _ in by_size)]]
    for place, name in enumerate(names):
        rows.append([name, *(_gain(of[place]) for _, of in by_size)])
    yield from table(rows)
    unknown = {lever.name: lever.missing for _, of in by_size for lever in of if lever.gain is None}
    for name, missing in unknown.items():
        yield f"{name}: {UNKNOWN}, {missing} missing"
    for row, of in by_size:
        first = best(of)
        if first is not None and first.gain is not None:
            hours = f"{_amount(24 * row.gpus * first.gain)} GPU-hours a day"
            yield f"{row.gpus:,} GPUs: most pays: {first.name}, +{100 * first.gain:.1f} points, {hours}"


def _gain(lever: Lever) -> str:
    return UNKNOWN if lever.gain is None else f"{100 * lever.gain:+.1f}"


def _targets(plan: Plan) -> Iterator[str]:
    target = plan.asked.target
    if target is None:
        return
    yield f"for a goodput of {target:.1%}, each alone:"
    for row in plan.rows:
        if row.outlook is not None and row.outlook.needs is not None:
            yield f"  {row.gpus:,} GPUs: {_need(row, row.outlook, target)}"


def _need(row: Row, of: Outlook, target: float) -> str:
    needs = of.needs
    assert needs is not None
    if of.expected.goodput >= target:
        return (
            f"{of.expected.goodput:.1%} is there already; it holds with {_alternatives(row, needs)}"
        )
    if needs == Needs(None, None, None):
        return "nothing would do: any failure costs something"
    return _alternatives(row, needs)


def _alternatives(row: Row, needs: Needs) -> str:
    restart = (
        "no restart would do" if needs.restart_s is None else _at_most("restart", needs.restart_s)
    )
    save = "no save would do" if needs.save_s is None else _at_most("save", needs.save_s)
    if needs.mtbf_s is None:
        return f"{restart}; {save}; no failure rate would do"
    each = duration(needs.mtbf_s * row.gpus)
    return f"{restart}; {save}; MTBF ≥ {duration(needs.mtbf_s)} (each GPU {each})"


def _at_most(what: str, most_s: float) -> str:
    return f"{what} ≤ {duration(most_s)}"


# ── what it rests on ────────────────────────────────────────────────────────────────────────────


def _footing(plan: Plan) -> Iterator[str]:
    if plan.missing:
        return
    asked = plan.asked
    yield f"as good: the intervals that cost less than {100 * FLAT_POINTS:g} points; sd: of one run, in points"
    commits = any(one.job.commit_s for one in _outlooks(plan))
    if asked.save_s is None:
        yield "a save blocks training until all of it is written (else say --save)"
    elif commits:
        yield "a save blocks as said and is durable later: what was done meanwhile is lost with it"
    memory = asked.memory
    tier = f"a save of {duration(memory.save_s)}, a restart of {duration(memory.restart_s)}"
    shares = ", ".join(f"{place} {share:g}" for place, share in SERVED.items())
    if asked.place is not None:
        served = SERVED[asked.place] if asked.share is None else asked.share
        yield f"in the plan: memory tier ({asked.place}), {tier}, serving {served:g} of the failures"
    yield f"memory tiers: {tier}, never slower than what is there; serving of the failures: {shares}"
