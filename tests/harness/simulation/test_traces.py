from pathlib import Path

import pytest

from harness.simulation.traces import gaps, instants_s

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
