from itertools import accumulate
from pathlib import Path

import pytest

from harness.simulation.laws import Observed, Weibull
from harness.simulation.traces import gaps, instants_s
from harness.theory import best_goodput

TRACE = Path(__file__).with_name("trace.json")
DAY = 86_400


def test_faults_of_one_instant_are_one_failure_and_their_ends_are_none():
    assert instants_s(TRACE) == [0.5 * DAY, 1.5 * DAY, 4.5 * DAY]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("at_s\n30\n10\n", [10, 30]),
        ("node,at_h\n3,1\n4,0.5\n", [1800, 3600]),
        ("at_min\n1\n", [60]),
        ("at_d\n1\n", [DAY]),
    ],
)
def test_a_column_says_its_unit(tmp_path, text, expected):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    assert instants_s(path) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: there is no failure in it"),
        ("at_s\n", "is empty: there is no failure in it"),
        ("[]", "is empty: there is no failure in it"),
        ("time\n1\n", "is no trace of failures: it has no column at_s or at_min or at_h or at_d"),
        ("at_s\nsoon\n", "is no trace of failures: could not convert string to float: 'soon'"),
        ("at_s\n-1\n", "is no trace of failures: instant = -1.0 is below 0: give a larger one"),
        ('{"a": 1}', "is no trace of failures: it is not a list of faults"),
        (
            '[{"event_type": "fault_start"}]',
            "is no trace of failures: an entry has no 'event_time'",
        ),
        ("[1]", "is no trace of failures: 'int' object is not subscriptable"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(ValueError, match="trace") as caught:
        instants_s(path)
    assert str(caught.value) == f"{path} {message}"


def test_gaps_are_stretched_to_another_mean():
    law = gaps([0.5, 1.5, 4.5], mean_s=200)
    assert sorted(law.durations_s) == [100, 300]
    assert law.mean_s == 200


def test_one_failure_has_no_gap():
    with pytest.raises(ValueError, match=r"^a trace with one failure has no gap"):
        gaps([1.0], 5)


# ── what real gaps do to goodput ────────────────────────────────────────────────────────────────


def best_goodput_of(law: Observed, save_s: float, restart_s: float) -> float:
    """Exact for gaps drawn independently from `law`: whole intervals over all time, at the best one."""
    seen = law.durations_s
    cycles_s = sum(seen) + restart_s * len(seen)

    def reached(interval_s: float) -> float:
        return interval_s * sum(gap // (interval_s + save_s) for gap in seen) / cycles_s

    return max(reached(interval_s) for interval_s in range(200, 1500, 10))


@pytest.mark.parametrize(
    ("mtbf_s", "once", "one_by_one"), [(11_160, 0.31, 0.64), (1_828.8, 0.88, 1.42)]
)
def test_real_gaps_move_goodput_by_less_where_faults_of_one_instant_are_one_failure(
    mtbf_s, once, one_by_one
):
    # as in the trace of InfiniteHBD: 528 gaps of Weibull shape 0.62, and 55 faults beside another one
    spread = Weibull(1.0, 0.62)
    alone = list(accumulate(spread.quantile_s((place + 0.5) / 528) for place in range(528)))
    instants = [0.0, *alone]
    textbook = best_goodput(33, 600, mtbf_s)
    moved = [
        100 * (best_goodput_of(gaps(seen, mtbf_s), 33, 600) - textbook)
        for seen in (instants, sorted([*instants, *alone[::9][:55]]))
    ]
    assert moved == pytest.approx([once, one_by_one], abs=0.02)
