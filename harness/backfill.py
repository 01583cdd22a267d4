"""A run's metrics along its timeline, as OpenMetrics text that Prometheus loads afterwards.

A value is told when it changes, and every few minutes: Prometheus looks back five for the last one.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TextIO

from harness.collector import BOUNDS, present
from harness.events import Entry
from harness.fold import Fold
from harness.histogram import Histogram
from harness.journal import read
from harness.metrics import COMMON, FAMILIES, Family, Kind
from harness.phases import Phase
from harness.present import Present
from harness.rundir import RunDir
from harness.samples import DRAW
from harness.server import say
from harness.timeline import Timeline, timeline

USUAL_INSTANTS = 2000
"""At about so many instants a run is looked at, if nobody says how often."""
SILENT_NS = 240_000_000_000
_NS = 1_000_000_000
_MS = 1_000_000

Told = float | tuple[tuple[int, ...], int]
"""A number; of a histogram its counts, and the nanoseconds that they sum to."""


@dataclass(slots=True)
class Course:
    """How one series went."""

    times_ns: "array[int]" = field(default_factory=lambda: array("q"))
    values: list[Told] = field(default_factory=list)

    def tell(self, at_ns: int, value: Told) -> None:
        """Remember the value at an instant, unless it is what everyone knows."""
        if self.values and at_ns - self.times_ns[-1] < SILENT_NS:
            known = self.values[-1]
            if value == known or (value != value and known != known):  # noqa: PLR0124 - not a number
                return
        self.times_ns.append(at_ns)
        self.values.append(value)


@dataclass(frozen=True, slots=True)
class Recorded:
    """How all series of a run went."""

    common: tuple[str, str]
    courses: Mapping[str, Mapping[tuple[str, ...], Course]]
    """By the family's name and the values of its own labels."""


def recorded(run_dir: RunDir, every_s: float | None = None) -> Recorded:
    """Look at a run every so many seconds of its time; by default about `USUAL_INSTANTS` times.

    Raises `ValueError` where there is no log, or one in which something cannot have happened.
    """
    entries = read(run_dir)
    if not entries:
        raise ValueError(f"{run_dir.path} has no events: nothing has happened there")
    whole = timeline(entries)
    last = present(run_dir, whole.account)
    courses: dict[str, dict[tuple[str, ...], Course]] = {name: {} for name in FAMILIES}
    for at_ns, now in _moments(entries, _downs(whole), last, every_s):
        for name, draw in DRAW.items():
            for own, value in draw(now).items():
                told = _told(value)
                courses[name].setdefault(own, Course()).tell(at_ns, told)
    return Recorded(
        (last.job_name, last.run_id), {name: _filled(of) for name, of in courses.items()}
    )


def _filled(courses: dict[tuple[str, ...], Course]) -> dict[tuple[str, ...], Course]:
    """Without histograms that stay empty, which would be most of what there is to load."""
    return {own: course for own, course in courses.items() if not _is_empty(course.values[-1])}


def _is_empty(told: Told) -> bool:
    return isinstance(told, tuple) and not any(told[0])


def _moments(
    entries: Sequence[Entry],
    downs: Sequence[tuple[int, int]],
    last: Present,
    every_s: float | None,
) -> Iterator[tuple[int, Present]]:
    """The run at each instant. What only a living process could tell is not told."""
    start_ns, end_ns = entries[0].at_ns, entries[-1].at_ns
    fold, place = Fold(), 0
    for at_ns in instants(start_ns, end_ns, every_s):
        while place < len(entries) and entries[place].at_ns <= at_ns:
            fold.feed(entries[place])
            place += 1
        is_led = last.is_led if at_ns == end_ns else not _within(downs, at_ns)
        yield at_ns, replace(last, account=fold, is_led=is_led, up=(), slots={})


def instants(start_ns: int, end_ns: int, every_s: float | None) -> list[int]:
    """Where a run is looked at: from its first event on, and at its last.

    Raises `ValueError` for what can be no interval.
    """
    check_interval(every_s)
    usual_ns = min(max((end_ns - start_ns) // USUAL_INSTANTS, _NS), SILENT_NS)
    every_ns = usual_ns if every_s is None else int(every_s * _NS)
    return [*range(start_ns, end_ns - _MS, every_ns), end_ns]


def check_interval(every_s: float | None) -> None:
    """Raise `ValueError` for what can be no interval."""
    if every_s is not None and not 0.001 <= every_s <= 1e9:
        raise ValueError(f"--every {every_s:g} is no interval: it is 0.001 to 1e9 seconds")


def _downs(whole: Timeline) -> list[tuple[int, int]]:
    """When no launcher lived, as one knows afterwards."""
    return [(one.start_ns, one.end_ns) for one in whole.segments if one.phase is Phase.DOWN]


def _within(stretches: Sequence[tuple[int, int]], at_ns: int) -> bool:
    place = bisect_right(stretches, (at_ns, at_ns)) - 1
    return place >= 0 and at_ns < stretches[place][1]


def _told(value: float | Histogram) -> Told:
    """A copy: histograms go on counting."""
    if isinstance(value, Histogram):
        return tuple(value.counts), value.total_ns
    return value


def write(run_dirs: Sequence[RunDir], every_s: float | None, out: TextIO) -> None:
    """Write the metrics of runs, each over all of its time; what is done is said on standard error.

    Raises `ValueError` as the parts do.
    """
    runs = []
    for run_dir in run_dirs:
        say(f"looking at {run_dir.path} from its beginning to its end")
        runs.append(recorded(run_dir, every_s))
        told = [course for courses in runs[-1].courses.values() for course in courses.values()]
        values = sum(len(course.values) for course in told)
        say(f"{values:,} values of {len(told):,} metrics by label")
    out.writelines(lines(runs))


# ── as text ─────────────────────────────────────────────────────────────────────────────────────


def lines(runs: Sequence[Recorded]) -> Iterator[str]:
    """The runs' metrics, family by family. Raises `ValueError` where two runs are one."""
    names = [run.common for run in runs]
    if twice := {name for name in names if names.count(name) > 1}:
        job_name, run_id = sorted(twice)[0]
        raise ValueError(f"run {run_id} is there twice under the name {job_name}: name it once")
    for name, family in FAMILIES.items():
        base = name.removesuffix("_total") if family.kind is Kind.COUNTER else name
        yield f"# TYPE {base} {family.kind.value}\n"
        yield f"# HELP {base} {_escaped(family.help)}\n"
        for run in runs:
            for own, course in run.courses[name].items():
                yield from _series(family, (*run.common, *own), course)
    yield "# EOF\n"


def _series(family: Family, values: Sequence[str], course: Course) -> Iterator[str]:
    named = zip((*COMMON, *family.labels), values, strict=True)
    labels = ",".join(f'{label}="{_escaped(value)}"' for label, value in named)
    for at_ns, told in zip(course.times_ns, course.values, strict=True):
        at_s = f"{at_ns / _NS:.3f}"
        if not isinstance(told, tuple):
            yield f"{family.name}{{{labels}}} {float(told)!r} {at_s}\n"
            continue
        counts, total_ns = told
        for bound, count in zip(BOUNDS, accumulate(counts), strict=True):
            yield f'{family.name}_bucket{{{labels},le="{bound}"}} {count} {at_s}\n'
        yield f"{family.name}_count{{{labels}}} {sum(counts)} {at_s}\n"
        yield f"{family.name}_sum{{{labels}}} {total_ns / _NS!r} {at_s}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
