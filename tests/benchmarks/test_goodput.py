"""The one definition of goodput by which benchmarks compare sides."""

from benchmarks.goodput import Step, goodput


def test_kept_steps_count_once_and_first_steps_and_pauses_do_not():
    steps = [
        Step(1, 0.0, 1.0, 7),  # the first of its attempt
        Step(2, 1.0, 2.0, 7),
        Step(3, 2.5, 3.5, 7),  # after half a second of saving, and lost
        Step(4, 3.5, 4.5, 7),  # lost
        Step(3, 8.0, 9.0, 8),  # the first of its attempt
        Step(4, 9.0, 10.0, 8),
        Step(5, 10.0, 10.5, 8),
    ]
    assert goodput(steps, 1.0, 11.0) == ((1.0 + 1.0 + 0.5) / 10.0, 3)


def test_what_lies_outside_the_window_is_no_work_in_it():
    steps = [Step(n, n - 1.0, float(n), 7) for n in range(1, 6)]
    assert goodput(steps, 1.0, 4.0) == (1.0, 3)
    assert goodput(steps, 1.5, 4.0) == (0.8, 2)


def test_a_step_that_was_never_done_again_stays_lost():
    steps = [Step(1, 0, 1, 7), Step(2, 1, 2, 7), Step(3, 2, 3, 7), Step(2, 3, 4, 8)]
    assert goodput(steps, 0.0, 4.0) == (0.0, 0)
