from hypothesis import given
from hypothesis import strategies as st

from harness.events import ArithmeticKnown
from harness.report.throughput import Throughput
from harness.signals.speed import WINDOW_NS, Speed, mfu

S = 1_000_000_000
KNOWN = ArithmeticKnown(6e6, 7.5e6, 1e9, "NVIDIA H100 data sheet", "bfloat16")


def test_speed_is_that_of_the_last_half_minute_of_work():
    speed = Speed()
    assert speed.tokens_per_s is None
    for _ in range(100):
        speed.add(S // 2, 50)
    assert speed.tokens_per_s == 100.0
    for _ in range(60):
        speed.add(S // 2, 100)
    assert speed.tokens_per_s == 200.0
    speed.resume()
    assert speed.tokens_per_s is None


def test_a_step_longer_than_the_window_has_it_to_itself():
    speed = Speed()
    speed.add(S, 1_000_000)
    speed.add(2 * WINDOW_NS, 6_000)
    assert speed.tokens_per_s == 100.0


@given(st.lists(st.tuples(st.integers(1, 90 * S), st.integers(0, 10_000))))
def test_sums_are_those_of_the_bins_and_the_window_is_full_but_no_fuller(
    steps: list[tuple[int, int]],
):
    speed = Speed()
    for worked_ns, tokens in steps:
        speed.add(worked_ns, tokens)
        assert speed.worked_ns == sum(one.worked_ns for one in speed.bins)
        assert speed.tokens == sum(one.tokens for one in speed.bins)
        assert len(speed.bins) <= WINDOW_NS // S + 2
    worked_ns = sum(worked_ns for worked_ns, _ in steps)
    assert speed.worked_ns >= min(worked_ns, WINDOW_NS)


def test_mfu_is_arithmetic_done_over_what_the_devices_could_do():
    # 6 MFLOP a token, 100 tokens a second over 2 devices of 1 GFLOP/s: 600 of 2000 MFLOP/s.
    assert mfu(KNOWN, 100.0, 2) == {"counted": 0.375, "formula": 0.3}
    assert mfu(ArithmeticKnown(6e6, None, 1e9), 100.0, 2) == {"formula": 0.3}
    assert mfu(ArithmeticKnown(6e6, 7.5e6, None), 100.0, 2) == {}
    assert mfu(None, 100.0, 2) == {}


def test_a_report_says_both_and_of_which_peak():
    told = Throughput(1_000, 10 * S, 2, KNOWN)
    assert told.lines() == [
        "tokens: 1,000, 100 a second of work",
        (
            "MFU: 37.5% counted by torch, 30.0% by 6 N a token"
            " (peak of a device: 0.001 TFLOP/s bfloat16, NVIDIA H100 data sheet)"
        ),
    ]
    assert told.to_json() == {"tokens_per_s": 100.0, "mfu": {"counted": 0.375, "formula": 0.3}}
    assert Throughput().lines() == []
