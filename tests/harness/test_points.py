import pytest

from harness import points
from harness.points import Point


@pytest.fixture(autouse=True)
def unarmed():
    yield
    points.disarm()


def test_an_armed_point_acts_each_time_and_only_there():
    reached = []
    points.arm(Point.SAVE_SHARD, lambda: reached.append("shard"))
    points.reach(Point.SAVE_SHARD)
    points.reach(Point.SAVE_COMMIT)
    points.reach(Point.SAVE_SHARD)
    assert reached == ["shard", "shard"]


def test_unarmed_points_do_nothing():
    for point in Point:
        points.reach(point)
