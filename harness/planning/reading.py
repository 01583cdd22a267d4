"""What runs said, in words, before the plan that is made from it."""

from collections.abc import Iterator

from harness.planning.measured import Incidents, Seen
from harness.planning.words import counted_rate, duration, table


def told(seen: Seen) -> str:
    """What was measured."""
    return "\n".join([*_head(seen), *_causes(seen), *_notes(seen)]) + "\n"


def _head(seen: Seen) -> Iterator[str]:
    runs = "1 run" if seen.runs == 1 else f"{seen.runs} runs"
    yield (
        f"measured in {runs}: {duration(seen.wall_s)}, of which {duration(seen.up_s)} of training on up to"
        f" {seen.devices:,} ranks (a rank is taken for a GPU)"
    )
    figures = {
        "a save blocks": seen.save_s,
        "durable after another": seen.commit_s,
        "a restart": seen.restart_s,
    }
    yield ", ".join(f"{name} {_known(value)}" for name, value in figures.items())


def _known(value_s: float | None) -> str:
    return "UNKNOWN" if value_s is None else duration(value_s)


def _causes(seen: Seen) -> Iterator[str]:
    if not seen.causes:
        yield counted_rate(seen.job_rate, "training")
        yield "the end of a run is no failure: it only ends the time"
        return
    yield f"without preemptions: {counted_rate(seen.job_rate, 'training')}"
    rows = [["cause", "failures", "incidents", "one in", "90 %"]]
    rows += [_row(one) for one in seen.causes]
    yield from table(rows)


def _row(one: Incidents) -> list[str]:
    least_s, most_s = one.rate.mtbf_at_least_s(), one.rate.mtbf_at_most_s()
    assert one.rate.mtbf_s is not None
    assert most_s is not None
    return [
        one.cause,
        str(one.failures),
        str(one.incidents),
        duration(one.rate.mtbf_s),
        f"{duration(least_s)}–{duration(most_s)}",
    ]


def _notes(seen: Seen) -> Iterator[str]:
    failures = sum(one.failures for one in seen.causes)
    injected = sum(one.injected for one in seen.causes)
    if any(one.failures > one.incidents for one in seen.causes):
        yield "a crash loop (one cause at one step, again and again) is one incident"
    if any(one.is_preemption for one in seen.causes):
        yield "preemptions are no failures: the plan is made without them"
    if injected:
        yield f"{injected} of {failures} failures were injected: their rate is the drill's, not the machine's"
    if seen.relaunches:
        yield f"launched again {seen.relaunches} times; why it had ended is not known, and not counted"
