"""Whether a helper that died is started again, and when."""

from hypothesis import given
from hypothesis import strategies as st

from launch import backoff
from launch.respawn import Again, GivenUp, decide


def test_the_first_death_is_answered_at_once_and_the_next_ones_ever_later():
    brief = [1.0] * 4
    assert [decide(brief[: count + 1]) for count in range(4)] == [
        Again(0.0),
        Again(0.5),
        Again(1.0),
        Again(2.0),
    ]


def test_a_helper_that_cannot_live_is_given_up():
    assert decide([0.1] * 5) == GivenUp("it died 5 times in a row within 60 s of its start")


def test_a_life_that_lasted_forgives_what_came_before_it():
    assert decide([0.1] * 4 + [60.0]) == Again(0.0)
    assert decide([0.1] * 4 + [60.0, 0.1]) == Again(0.0)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=30))
def test_no_wait_is_longer_than_the_longest_and_no_lasting_life_is_held_against_a_helper(
    lived_s: list[float],
):
    decision = decide(lived_s)
    if isinstance(decision, GivenUp):
        assert max(lived_s[-5:]) < 60
    else:
        assert 0 <= decision.wait_s <= 30


@given(st.integers(1, 10_000), st.floats(0.1, 10), st.floats(10, 1000))
def test_a_wait_never_shrinks_as_failures_go_on_and_never_passes_its_cap(
    in_a_row: int, first_s: float, most_s: float
):
    waits = [backoff.wait_s(count, first_s, most_s) for count in (in_a_row, in_a_row + 1)]
    assert 0 <= waits[0] <= waits[1] <= most_s
