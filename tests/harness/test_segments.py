"""Time by phase, and what many ranks pay for it."""

from hypothesis import given
from hypothesis import strategies as st

from harness.phases import Phase
from harness.segments import Meter


def test_each_stretch_is_paid_for_by_the_ranks_of_its_time():
    meter = Meter(phase=Phase.STARTUP)
    meter.resize(8)
    meter.advance(10)
    meter.close(10, Phase.DOWN)
    meter.resize(6)
    meter.advance(13)
    meter.resize(8)
    meter.advance(15)

    assert meter.totals[Phase.STARTUP] == 10
    assert meter.totals[Phase.DOWN] == 5
    assert meter.rank_totals[Phase.STARTUP] == 80
    assert meter.rank_totals[Phase.DOWN] == 3 * 6 + 2 * 8
    assert set(meter.earlier) == {0, 8, 6}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50))))
def test_what_is_paid_is_the_sum_over_all_stretches(stretches):
    meter, now_ns, paid = Meter(), 0, 0
    for ranks, lasted_ns in stretches:
        meter.resize(ranks)
        now_ns += lasted_ns
        meter.advance(now_ns)
        paid += ranks * lasted_ns
    assert sum(meter.rank_totals.values()) == paid
