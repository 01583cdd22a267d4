from harness.report.slowness import Slowness
from harness.signals.straggler import COMPARED, Lag
from harness.signals.tally import Episode, Stragglers
from tests.harness.signals.test_tally import KEEP, go_on, going, timed

MS = 1_000_000


def test_a_report_names_who_was_waited_for_and_why():
    tally = going()
    go_on(tally, range(2, COMPARED + 2), 100, 100, data=50)
    slowness = Slowness.of(tally)
    assert slowness.lines(2) == [
        "slowest ranks: waited for 2.00 s in all; named 1 time: rank 1 (data, +50 ms a step, 50%)"
    ]
    assert slowness.to_json() == {
        "compared": 40,
        "waited_s": 2.0,
        "named": 1,
        "records": [
            {
                "rank": 1,
                "cause": "data",
                "since_step": 41,
                "lasted_s": None,
                "delay_s": 0.05,
                "share": 0.5,
            }
        ],
        "slowdown": 1.0,
        "all_ranks_slow": False,
    }


def test_of_many_stragglers_the_worst_are_listed_each_once():
    episodes = [
        Episode(rank, Lag.COMPUTE, 1, 0, 5, 10 * MS, share)
        for rank, share in ((1, 0.1), (2, 0.2), (1, 0.4), (3, 0.3), (4, 0.1))
    ]
    (line,) = Slowness(9, 0, 5, episodes).lines(8)
    assert line.startswith("slowest ranks: waited for 0 ms in all; named 5 times: rank 1 (compute")
    assert line.endswith("rank 2 (compute, +10 ms a step, 20%) and 1 other")


def test_a_job_whose_ranks_are_all_slow_says_so_and_names_none():
    tally = going()
    go_on(tally, range(2, COMPARED + 2), 100, 100)
    go_on(tally, range(COMPARED + 2, 2 * COMPARED + 2), 200, 200)
    assert Slowness.of(tally).lines(2) == [
        "slowest ranks: waited for 0 ms in all; none of them named a straggler",
        "all ranks: a step took 2.00 times as long in the end as at best",
    ]


def test_one_rank_alone_is_compared_with_nobody():
    tally = going(1)
    tally.time(0, timed(2, 5), 0, KEEP)
    assert Slowness.of(tally).lines(1) == []
    assert Slowness.of(Stragglers()).lines(2) == []
