import math

import pytest

from harness.simulation.study import Point, judged, student


def test_what_the_same_failures_do_not_tell_apart_is_one_set():
    # the runs differ far more among each other than the intervals do; seed by seed one is worse
    runs = [0.5, 0.6, 0.7, 0.8]
    of = judged(
        [60, 120, 180],
        [[g - 0.01 - 0.001 * k for k, g in enumerate(runs)], runs, [0.51, 0.59, 0.71, 0.78]],
    )
    assert of.best.interval_s == 120
    assert [point.in_set for point in of.points] == [False, True, True]
    assert [point.interval_s for point in of.alike] == [120, 180]


def test_one_run_tells_nothing_apart():
    of = judged([60, 120], [[0.5], [0.6]])
    assert of.best == Point(120, 0.6, 0.6, 0.6, None, in_set=True)
    assert [point.in_set for point in of.points] == [True, True]


def test_nine_in_ten_runs():
    (point,) = judged([60], [[place / 100 for place in range(40)]]).points
    assert (point.low, point.high) == (0.02, 0.37)
    assert point.error == pytest.approx(
        math.sqrt(sum((k - 19.5) ** 2 for k in range(40)) / 39 / 40) / 100
    )


def test_runs_that_are_equal_are_one_set():
    of = judged([60, 120], [[0.5, 0.6], [0.5, 0.6]])
    assert len(of.alike) == 2


@pytest.mark.parametrize(
    ("freedom", "point"),
    [(1, 12.706), (4, 2.776), (5, 2.571), (7, 2.365), (19, 2.093), (199, 1.972)],
)
def test_student_s_points_are_those_of_tables(freedom, point):
    assert student(freedom) == pytest.approx(point, abs=2e-3)
