from hypothesis import given
from hypothesis import strategies as st

from harness.events import StepTimed
from harness.signals.passage import StepTime
from harness.signals.window import Window, stride

MS = 1_000_000


def told(window: Window, steps: range, own_ms: int, wait_ms: int = 0) -> list[StepTimed]:
    taken = (window.add(step, StepTime(own_ms * MS, wait_ms * MS), last=False) for step in steps)
    return [event for event in taken if event is not None]


def test_long_steps_are_told_one_by_one_and_short_ones_by_the_second():
    assert stride(1, 3_000 * MS) == 1
    assert stride(1, 1_000 * MS) == 1
    assert stride(1, 999 * MS) == 2
    assert stride(10, 300 * MS) == 64  # 33.3 steps of 30 ms
    window = Window()
    assert told(window, range(1, 9), 400, 100) == [
        StepTimed(1, 400 * MS, 100 * MS, steps=1),
        *(StepTimed(step, 400 * MS, 100 * MS, steps=step - before) for before, step in PAIRS),
    ]


PAIRS = [(1, 2), (2, 4), (4, 6), (6, 8)]


def test_steps_that_become_slow_are_told_of_soon():
    window = Window()
    told(window, range(1, 65), 10)
    assert told(window, range(65, 70), 3_000)[0].step == 65


def test_the_last_step_is_told_in_any_case():
    window = Window(every=64)
    assert window.add(3, StepTime(7, 4, 2, 5), last=False) is None
    assert window.add(5, StepTime(2, 2, 1, 1), last=True) == StepTimed(5, 4, 3, 1, 3, steps=2)


@given(st.lists(st.integers(1, 3_000), min_size=1, max_size=200), st.integers(0, 900))
def test_ranks_whose_clocks_differ_a_little_meet_again_and_again(took: list[int], more: int):
    windows = (Window(), Window())
    steps: tuple[list[tuple[int, int]], ...] = ([], [])
    for number, ms in enumerate(took, 1):
        for window, told_at, off in zip(windows, steps, (0, more), strict=True):
            event = window.add(number, StepTime(ms * MS + off, 0), last=number == len(took))
            if event is not None:
                told_at.append((event.step, event.steps))
    one, other = ({step for step, _ in told_at} for told_at in steps)
    assert 1 in one & other
    assert len(took) in one & other
    assert len(one & other) >= min(len(one), len(other)) / 2 - 1
    for told_at in steps:
        assert sum(count for _, count in told_at) == len(took)
