"""Laws of durations and ways to fail, against what they must be. KS at 0.001: D·√n < 1.95."""

import math
import statistics
from collections import Counter
from collections.abc import Callable
from itertools import accumulate

import pytest

from harness.simulation.draws import mulberry32, stream
from harness.simulation.failures import Failure, Instants, Lemons, Racks, Renewal
from harness.simulation.laws import Constant, Exponential, Law, LogNormal, Observed, Weibull

COUNT = 20_000


def drawn(law: Law, seed: int = 1, count: int = COUNT) -> list[float]:
    draw = mulberry32(seed)
    return [law.quantile_s(draw()) for _ in range(count)]


def distance(sample: list[float], cumulative: Callable[[float], float]) -> float:
    """Kolmogorov and Smirnov's largest distance, times the root of the number of draws."""
    ordered = sorted(sample)
    count = len(ordered)
    steps = (
        max(cumulative(x) - place / count, (place + 1) / count - cumulative(x))
        for place, x in enumerate(ordered)
    )
    return max(steps) * math.sqrt(count)


def normal(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2


def test_exponential_gaps_follow_their_law_and_no_other():
    assert distance(drawn(Exponential(100)), lambda x: -math.expm1(-x / 100)) < 1.95
    assert distance(drawn(Exponential(95)), lambda x: -math.expm1(-x / 100)) > 1.95


def test_weibull_gaps_follow_their_law_with_the_mean_asked_for():
    law = Weibull(100, 0.62)
    scale = 100 / math.gamma(1 + 1 / 0.62)
    assert distance(drawn(law), lambda x: -math.expm1(-((x / scale) ** 0.62))) < 1.95
    assert statistics.fmean(drawn(law)) == pytest.approx(100, rel=5 * 1.7 / math.sqrt(COUNT))
    # the coefficient of variation of this shape is √(Γ(1 + 2/k)/Γ(1 + 1/k)² - 1) = 1.68
    spread = statistics.stdev(drawn(law)) / statistics.fmean(drawn(law))
    assert spread == pytest.approx(1.68, rel=0.08)
    assert drawn(Weibull(100, 1), count=50) == pytest.approx(drawn(Exponential(100), count=50))


def test_log_normal_gaps_follow_their_law_with_the_mean_asked_for():
    law = LogNormal(100, 1.5)
    sd = math.sqrt(math.log(1 + 1.5**2))
    assert distance(drawn(law), lambda x: normal((math.log(x / 100) + sd * sd / 2) / sd)) < 1.95
    assert statistics.fmean(drawn(law)) == pytest.approx(100, rel=5 * 1.5 / math.sqrt(COUNT))
    assert LogNormal(100, 1.5).quantile_s(0.0) > 0


def test_observed_gaps_are_the_observed_ones_each_as_often():
    law = Observed([5, 1, 1, 3])
    counts = Counter(drawn(law, count=4000))
    assert set(counts) == {1, 3, 5}
    assert law.mean_s == 2.5
    assert abs(counts[1] - 2000) < 4 * math.sqrt(1000)  # 4 sd of a binomial


def test_a_constant_is_one():
    assert set(drawn(Constant(7), count=3)) == {7}


def test_a_renewal_counts_from_the_moment_that_the_job_is_back():
    draw, again = mulberry32(5), mulberry32(5)
    following = Renewal(Exponential(100)).begin(draw)
    gaps = [Exponential(100).quantile_s(again()) for _ in range(2)]
    assert [following(0).at_s, following(1000).at_s] == [gaps[0], 1000 + gaps[1]]


def test_given_instants_are_taken_in_order_and_those_in_a_restart_are_passed_over():
    following = Instants([30, 10, 20]).begin(mulberry32(1))
    assert [following(now) for now in (0, 10, 15, 25, 30)] == [
        Failure(10),
        Failure(20),
        Failure(20),
        Failure(30),
        Failure(math.inf),
    ]


def test_racks_fail_as_a_whole_and_the_rates_add_up():
    racks = Racks(nodes=100, nodes_per_rack=16, node_mtbf_s=1000, rack_mtbf_s=700)
    assert racks.racks == 7
    assert pytest.approx(1 / (0.1 + 0.01)) == racks.mtbf_s
    following = racks.begin(mulberry32(3))
    failures = [following(0) for _ in range(COUNT)]
    times = [failure.at_s for failure in failures]
    assert distance(times, lambda x: -math.expm1(-x * 0.11)) < 1.95
    sizes = Counter(len(failure.nodes) for failure in failures)
    assert set(sizes) == {1, 16, 4}  # the last rack holds what is left over
    by_rack = sizes[16] + sizes[4]
    share = 0.01 / 0.11
    assert abs(by_rack - COUNT * share) < 4 * math.sqrt(COUNT * share * (1 - share))
    assert failures[0].nodes[0] in range(100)
    assert next(list(f.nodes) for f in failures if len(f.nodes) == 4) == [96, 97, 98, 99]


def test_lemons_fail_more_often_and_the_job_as_often_as_it_is_said_to():
    lemons = Lemons(nodes=100, mtbf_s=50, lemon_share=0.1, times_worse=6)
    following = lemons.begin(mulberry32(4))
    failures = [following(0) for _ in range(COUNT)]
    assert distance([f.at_s for f in failures], lambda x: -math.expm1(-x / 50)) < 1.95
    share = 10 * 6 / (10 * 6 + 90)  # a tenth of the nodes has 40 % of the failures
    of_lemons = sum(f.nodes[0] < 10 for f in failures)
    assert abs(of_lemons - COUNT * share) < 4 * math.sqrt(COUNT * share * (1 - share))
    assert {f.nodes[0] for f in failures} == set(range(100))


def test_each_lemon_fails_as_often_as_another_and_so_does_each_ordinary_node():
    following = Lemons(8, 1000, lemon_share=0.5, times_worse=9).begin(mulberry32(1))
    counts = Counter(following(0).nodes[0] for _ in range(40_000))
    expected = [9000, 9000, 9000, 9000, 1000, 1000, 1000, 1000]
    assert [counts[node] for node in range(8)] == pytest.approx(expected, rel=0.12)


def test_lemons_that_are_replaced_leave_a_job_of_ordinary_nodes():
    lemons = Lemons(nodes=100, mtbf_s=50, lemon_share=0.1, times_worse=6, replaced_after=2)
    following = lemons.begin(mulberry32(4))
    early = [following(0) for _ in range(2000)]
    assert Counter(f.nodes[0] for f in early[:300])[0] >= 2
    late = [following(0).at_s for _ in range(COUNT)]
    # 100 ordinary nodes fail 100/150 times as often as 90 and 10 lemons that are 6 times worse
    assert distance(late, lambda x: -math.expm1(-x / 75)) < 1.95


def test_streams_for_other_purposes_are_independent_and_repeatable():
    first, again, other = stream(1, "tier"), stream(1, "tier"), stream(1, "repair")
    numbers = [first() for _ in range(1000)]
    assert numbers == [again() for _ in range(1000)]
    others = [other() for _ in range(1000)]
    # of independent streams the correlation has sd 1/√1000
    assert abs(statistics.correlation(numbers, others)) < 4 / math.sqrt(1000)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Exponential(0), "mean_s = 0 is not above 0"),
        (lambda: Weibull(10, 0), "shape = 0 is below 0.05"),
        (lambda: LogNormal(10, -1), "cv = -1 is not above 0"),
        (lambda: Observed([]), "no durations to draw from"),
        (lambda: Observed([1, -2]), "duration_s = -2 is below 0"),
        (lambda: Renewal(Constant(0)), "mean gap = 0 is not above 0"),
        (lambda: Instants([]), "no failure in the list"),
        (lambda: Instants([-1]), "instant_s = -1 is below 0"),
        (lambda: Racks(0, 8, 1, 1), "nodes = 0 is below 1"),
        (lambda: Lemons(10, 1, 2, 6), "lemon_share = 2 is above 1"),
        (lambda: Lemons(10, 1, 0.1, 0.5), "times_worse = 0.5 is below 1"),
        (lambda: mulberry32(-1), "seed = -1 is below 0"),
        (lambda: mulberry32(1 << 32), "seed = 4294967296 is above 4294967295"),
        (lambda: mulberry32(1.5), "seed = 1.5 is not a whole number"),  # type: ignore[arg-type]  # what people do
    ],
)
def test_what_cannot_be_a_law_is_refused(make, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        make()


def test_instants_from_gaps_are_the_renewal_of_their_law_where_restarts_take_no_time():
    gaps = drawn(Exponential(100), seed=9, count=50)
    instants = list(accumulate(gaps))
    given = Instants(instants).begin(mulberry32(1))
    renewed = Renewal(Exponential(100)).begin(mulberry32(9))
    now = 0.0
    for instant in instants:
        assert given(now).at_s == pytest.approx(renewed(now).at_s)
        now = instant
