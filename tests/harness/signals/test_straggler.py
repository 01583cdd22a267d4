import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.signals.straggler import (
    COMPARED,
    COMPARISONS_PER_DAY,
    FALSE_ALARMS_PER_DAY,
    Comparison,
    Lag,
    Limits,
    Reference,
    Share,
    Straggler,
    Watch,
    _least,
    compare,
    limits,
)

MS = 1_000_000


def share(own: int, data: int = 0, wait: int = 0, loop: int = 0) -> Share:
    """In milliseconds."""
    return Share(own * MS, wait * MS, data * MS, (own - data - loop) * MS)


def watched(*ranks: Share, times: int = COMPARED) -> Watch:
    watch = Watch()
    for _ in range(times):
        watch.add(compare(ranks))
    return watch


def test_four_ranks_compare_as_by_hand():
    ranks = (share(100, 5, 40), share(105, 5, 35), share(98, 5, 42), share(140, 45, 0))
    assert compare(ranks) == Comparison(
        usual_ns=100 * MS,
        pace_ns=100 * MS,
        late_ns=[0, 5 * MS, -2 * MS, 40 * MS],
        late_data_ns=[0, 0, 0, 40 * MS],
        late_compute_ns=[0, 5 * MS, -2 * MS, 0],
    )
    assert compare(ranks).wait_ns == 40 * MS


def test_of_two_ranks_the_slower_is_compared_with_the_faster():
    assert compare([share(130), share(100)]).late_ns == [30 * MS, 0]


def test_a_rank_that_is_slow_is_named_with_what_it_is_slow_at():
    usual = share(100, 10)
    assert watched(usual, usual, share(160, 70), usual).stragglers() == [
        Straggler(2, Lag.DATA, 60 * MS, 0.6)
    ]
    assert watched(usual, share(110, 10)).stragglers() == [Straggler(1, Lag.COMPUTE, 10 * MS, 0.1)]
    assert watched(share(150, 10, loop=50), usual, usual).stragglers() == [
        Straggler(0, Lag.LOOP, 50 * MS, 0.5)
    ]


def test_two_ranks_of_a_slow_node_are_both_named():
    watch = Watch()
    for at in range(COMPARED):  # either may be the slowest
        slow = share(150 + at % 2), share(151 - at % 2)
        watch.add(compare([share(100), *slow, share(100)]))
    assert {one.rank for one in watch.stragglers()} == {1, 2}


def test_nobody_is_named_who_is_slower_by_little_or_not_for_long_or_beside_equals():
    assert watched(share(100), share(104), share(100)).stragglers() == []
    assert watched(share(100), share(200), times=COMPARED - 1).stragglers() == []
    assert watched(share(300), share(300), share(300)).stragglers() == []


def test_a_name_stays_until_half_of_the_delay_is_gone():
    watch = watched(share(100), share(104))
    assert watch.stragglers(named=(1,)) == [Straggler(1, Lag.COMPUTE, 4 * MS, 0.04)]
    assert watched(share(100), share(102)).stragglers(named=(1,)) == []


def test_the_limits_keep_the_budget_of_false_alarms():
    assert limits(2) == Limits(37, 37)
    assert limits(4) == Limits(28, 37)
    assert limits(8) == Limits(21, 38)
    for ranks in (2, 3, 4, 8, 64, 1_000, 16_384):
        assert COMPARED // 2 < limits(ranks).slowest <= COMPARED
        assert limits(ranks).above <= COMPARED
    # By hand: at least 37 of 40 tosses of a coin show heads in (1 + 40 + 780 + 9880) of 2⁴⁰ ways.
    assert _least(0.5, 10_701 / 2**40 * 1.01) == 37
    assert _least(0.5, 10_701 / 2**40 * 0.99) == 38
    day = 10_701 / 2**40 * COMPARISONS_PER_DAY * 2
    assert day <= FALSE_ALARMS_PER_DAY / 2


def test_half_a_day_of_heavy_tailed_noise_raises_no_alarm_and_hides_no_straggler():
    chance = random.Random(7)

    def noisy(slower: float) -> Share:
        # Times of infinite variance: one in a hundred is 22 times as late as the median.
        own = slower * (100 + 10 * (chance.paretovariate(1.5) - 1))
        return Share(round(own * MS), 0, 0, round(own * MS))

    watch, alarms = Watch(), 0
    for _ in range(COMPARISONS_PER_DAY // 2):
        watch.add(compare([noisy(1.0) for _ in range(4)]))
        alarms += bool(watch.stragglers())
    assert alarms == 0
    for _ in range(2 * COMPARED):
        watch.add(compare([noisy(1.0), noisy(1.0), noisy(1.0), noisy(1.3)]))
    assert [one.rank for one in watch.stragglers()] == [3]


@given(st.lists(st.lists(st.integers(0, 1_000), min_size=3, max_size=3), min_size=1, max_size=120))
def test_counts_are_those_of_the_window(times: list[list[int]]):
    watch = Watch()
    for ranks in times:
        watch.add(compare([share(own) for own in ranks]))
    kept = watch.window
    assert len(kept) == min(COMPARED, len(times))
    assert watch.above == [sum(one.late_ns[rank] > 0 for one in kept) for rank in range(3)]
    assert sum(watch.slowest) <= len(kept)
    assert min(watch.slowest) >= 0


# ── everyone ────────────────────────────────────────────────────────────────────────────────────


def paced(reference: Reference, *blocks_ms: int) -> Reference:
    for ms in blocks_ms:
        for _ in range(COMPARED):
            reference.add(ms * MS)
    return reference


def test_a_job_that_is_slower_than_it_was_is_slow_though_no_rank_is():
    fast = paced(Reference(), 110, 100, 115)
    assert (fast.slowdown, fast.is_slow) == (1.15, False)
    slow = paced(fast, 130)
    assert (slow.slowdown, slow.is_slow) == (1.3, True)
    assert paced(slow, 105).is_slow is False


def test_before_a_block_is_full_nothing_is_known():
    reference = Reference()
    assert [reference.add(MS) for _ in range(COMPARED - 1)] == [False] * (COMPARED - 1)
    assert (reference.slowdown, reference.is_slow) == (None, False)
    assert reference.add(MS)


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_noise_alone_makes_no_job_slow(noise: float):
    chance, reference = random.Random(3), Reference()
    slow = 0
    for _ in range(COMPARISONS_PER_DAY):
        full = reference.add(round(100 * MS * chance.lognormvariate(0, noise)))
        slow += full and reference.is_slow
    assert slow == 0
