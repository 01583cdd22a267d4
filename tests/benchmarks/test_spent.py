"""The one definition of goodput by which benchmarks compare sides."""

from benchmarks.spent import Split, Step, split


def test_every_second_is_in_one_part_and_steps_count_once():
    steps = [
        Step(1, 0.0, 1.0, 7),  # the first of its attempt
        Step(2, 1.0, 2.0, 7),
        Step(3, 2.5, 3.5, 7),  # after half a second of saving, and lost
        Step(4, 3.5, 4.5, 7),  # lost
        Step(3, 8.0, 9.0, 8),  # the first of its attempt
        Step(4, 9.0, 10.0, 8),
        Step(5, 10.0, 10.5, 8),
    ]
    found = split(steps, 1.0, 10.5)
    assert found == Split(kept_s=2.5, lost_s=2.0, back_s=4.5, between_s=0.5, kept=3)
    assert found.goodput == 2.5 / 9.5


def test_what_lies_outside_the_window_is_in_no_part():
    steps = [Step(n, n - 1.0, float(n), 7) for n in range(1, 6)]
    assert split(steps, 1.0, 4.0) == Split(kept_s=3.0, kept=3)
    assert split(steps, 1.5, 4.0) == Split(kept_s=2.0, kept=2)


def test_a_step_that_was_never_done_again_stays_lost():
    steps = [Step(1, 0, 1, 7), Step(2, 1, 2, 7), Step(3, 2, 3, 7), Step(2, 3, 4, 8)]
    found = split(steps, 1.0, 4.0)
    assert found == Split(lost_s=2.0, back_s=1.0)
    assert found.goodput == 0


def test_two_times_together_have_the_goodput_of_the_longer_time():
    both = Split(kept_s=9.0, lost_s=1.0, kept=9) + Split(
        kept_s=2.0, back_s=6.0, between_s=2.0, kept=2
    )
    assert both == Split(11.0, 1.0, 6.0, 2.0, 11)
    assert both.goodput == 11 / 20
