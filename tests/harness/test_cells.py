from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from harness.phases import PRODUCTIVE, Phase
from harness.report.cells import Cell, cells, kind_of
from harness.segments import Segment

PHASES = st.sampled_from([phase for phase in Phase if phase is not Phase.FINISHED])


@st.composite
def stretches(draw: st.DrawFn) -> list[Segment]:
    """A run's time, from some instant on without a gap."""
    lengths_ns = draw(st.lists(st.integers(1, 40), min_size=1, max_size=12))
    ends_ns = [draw(st.integers(0, 1000))]
    for length_ns in lengths_ns:
        ends_ns.append(ends_ns[-1] + length_ns)
    found = []
    for start_ns, end_ns in pairwise(ends_ns):
        phase = draw(PHASES)
        lost = phase in PRODUCTIVE and draw(st.booleans())
        found.append(Segment(phase, start_ns, end_ns, 0, lost=lost))
    return found


def test_each_cell_of_the_strip_shows_what_most_of_its_time_was_and_every_failure():
    segments = [
        Segment(Phase.STARTUP, 100, 110, 0),
        Segment(Phase.WORK, 110, 126, 0),
        Segment(Phase.WORK, 126, 130, 0, lost=True),
        Segment(Phase.INTERRUPTED, 130, 131, 0),
        Segment(Phase.RESTART, 131, 134, 0),
        Segment(Phase.WORK, 134, 140, 1),
    ]
    assert cells(segments, [131], 4) == [
        Cell("startup"),
        Cell("work"),
        Cell("work"),
        Cell("work", failed=True),
    ]
    assert [cell.kind for cell in cells(segments, [131], 20)] == [
        *["startup"] * 5,
        *["work"] * 8,
        *["lost"] * 2,
        "interrupted",
        "restart",
        *["work"] * 3,
    ]


def test_no_time_makes_no_cell():
    assert cells([], [5], 4) == []
    assert cells([Segment(Phase.WORK, 5, 5, 0)], [5], 4) == []


@given(stretches(), st.integers(1, 60), st.data())
def test_any_strip_shows_the_most_of_each_cell_and_each_failure_in_the_cell_that_it_ends_in(
    segments: list[Segment], count: int, data: st.DataObject
):
    start_ns, end_ns = segments[0].start_ns, segments[-1].end_ns
    failures_ns = data.draw(st.lists(st.integers(start_ns + 1, end_ns), max_size=4))
    drawn = cells(segments, failures_ns, count)
    assert len(drawn) == count
    for place, cell in enumerate(drawn):
        low = start_ns + Fraction(place * (end_ns - start_ns), count)
        high = start_ns + Fraction((place + 1) * (end_ns - start_ns), count)
        inside: dict[str, Fraction] = defaultdict(Fraction)
        for one in segments:
            begin, end = max(Fraction(one.start_ns), low), min(Fraction(one.end_ns), high)
            inside[kind_of(one)] += max(Fraction(0), end - begin)
        assert inside[cell.kind] == max(inside.values())
        assert cell.failed == any(low <= at_ns - 1 < high for at_ns in failures_ns)
