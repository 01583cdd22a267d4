from hypothesis import given
from hypothesis import strategies as st

from harness.page.window import CELLS, WINDOWS_S, strip
from harness.phases import Phase
from harness.segments import Segment

S = 1_000_000_000


def test_a_minute_of_work_with_a_failure_by_hand():
    segments = [
        Segment(Phase.WORK, 100 * S, 130 * S, 0),
        Segment(Phase.INTERRUPTED, 130 * S, 131 * S, 0),
        Segment(Phase.RESTART, 131 * S, 145 * S, 1),
    ]
    assert strip(segments, [131 * S], 60) == {
        "window_s": 60,
        "until_s": 145.0,
        "of": 240,
        "blank": 60,
        "runs": [["work", 120], ["interrupted", 4], ["restart", 56]],
        "failures": [60 + 123],
        "seconds": {"work": 30.0, "interrupted": 1.0, "restart": 14.0},
    }


def test_what_is_older_than_the_window_is_cut_off():
    told = strip([Segment(Phase.WORK, 0, 500 * S, 0)], [3 * S, 499 * S], 60)
    assert (told["blank"], told["runs"]) == (0, [["work", 240]])
    assert told["failures"] == [235]
    assert told["seconds"] == {"work": 60.0}


def test_phases_that_were_over_before_the_window_are_not_in_it():
    segments = [
        Segment(Phase.STARTUP, 0, 5 * S, 0),
        Segment(Phase.WORK, 5 * S, 400 * S, 0),
    ]
    assert strip(segments, [], 60)["seconds"] == {"work": 60.0}


def test_the_cell_that_has_only_begun_is_shown():
    segments = [
        Segment(Phase.WORK, 0, 10 * S, 0),
        Segment(Phase.RESTART, 10 * S, 10 * S + S // 100, 0),
    ]
    told = strip(segments, [10 * S], 60)
    assert (told["runs"], told["until_s"]) == ([["work", 40], ["restart", 1]], 10.25)


def test_lost_work_is_told_apart():
    segments = [
        Segment(Phase.WORK, 0, 5 * S, 0),
        Segment(Phase.WORK, 5 * S, 10 * S, 0, lost=True),
    ]
    assert strip(segments, [], 60)["runs"] == [["work", 20], ["lost", 20]]


def test_drawn_again_a_moment_later_all_old_cells_stay_as_they_were():
    stalls = [
        Segment((Phase.WORK, Phase.SAVE_STALL)[at % 2], at * S, at * S + S, 0) for at in range(90)
    ]
    cells = []
    for more_ns in (0, S // 10):
        last = stalls[-1]._replace(end_ns=90 * S - S // 5 + more_ns)
        told = strip([*stalls[:-1], last], [], 300)
        cells.append([told["blank"], *told["runs"]])
    assert cells[0] == cells[1]


@given(
    st.lists(st.tuples(st.sampled_from([*Phase]), st.integers(1, 400 * S)), max_size=12),
    st.sampled_from(WINDOWS_S),
    st.integers(0, 10**18),
)
def test_a_strip_is_always_full(stretches, window_s, start_ns):
    segments, at_ns = [], start_ns
    for phase, duration_ns in stretches:
        segments.append(Segment(phase, at_ns, at_ns + duration_ns, 0))
        at_ns += duration_ns
    told = strip(segments, [one.end_ns for one in segments], window_s)
    assert told["blank"] + sum(count for _, count in told["runs"]) == CELLS
    assert all(0 <= at < CELLS for at in told["failures"])
    assert sum(told["seconds"].values()) <= window_s + 1e-6
