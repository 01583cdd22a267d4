import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.checkpoint.lineage import Chain, Departure, chain, was_committed


def test_a_run_worked_by_hand():
    departures = {
        1: Departure(None, 0),
        2: Departure(1, 100),
        3: Departure(1, 50),  # 100 could not be read, so it walked back
        5: Departure(3, 80),  # attempt 4 died before it chose
    }

    found = chain(departures)

    assert found == Chain(5, {5: None, 3: 80, 1: 50})
    assert found.accepts(50, 1)
    assert not found.accepts(60, 1)
    assert not found.accepts(110, 2)
    assert found.accepts(80, 3)
    assert not found.accepts(90, 3)
    assert found.accepts(1_000_000, 5)
    assert not found.accepts(90, 4)


def test_before_anyone_has_chosen_nothing_counts():
    assert chain({}) == Chain(None, {})
    assert not chain({}).accepts(1, 1)


def test_a_start_from_nothing_ends_the_chain():
    assert chain({1: Departure(None, 0), 2: Departure(None, 0)}) == Chain(2, {2: None})


def test_a_parent_without_a_record_still_counts_up_to_the_departure():
    assert chain({7: Departure(6, 30)}) == Chain(7, {7: None, 6: 30})


def test_a_zombie_that_chooses_late_does_not_become_the_newest():
    departures = {1: Departure(None, 0), 3: Departure(1, 40)}
    late = {**departures, 2: Departure(1, 60)}

    assert chain(late) == chain(departures)


@pytest.mark.parametrize("parent", [2, 3])
def test_a_record_that_cannot_be_true_is_an_error(parent):
    with pytest.raises(ValueError, match=f"attempt 2 claims to descend from attempt {parent}"):
        chain({2: Departure(parent, 10)})


@pytest.mark.parametrize(
    ("departures", "known"),
    [
        ({}, False),
        ({1: Departure(None, 0)}, False),
        ({1: Departure(None, 0), 2: Departure(1, 50)}, True),
        ({1: Departure(None, 0), 2: Departure(1, 50, memory=True)}, False),
        ({1: Departure(None, 0), 2: Departure(1, 50), 3: Departure(2, 80, memory=True)}, True),
        ({0: Departure(None, 0), 1: Departure(0, 50)}, True),
        ({2: Departure(1, 50, memory=True)}, False),
        ({1: Departure(None, 0), 2: Departure(2, 50)}, False),
        ({1: Departure(None, 0), 2: Departure(3, 50)}, False),
    ],
)
def test_a_commit_is_known_of_where_the_way_back_comes_to_one(departures, known):
    assert was_committed(departures) is known


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 100)), min_size=1, max_size=12),
    st.integers(1, 12),
    st.integers(0, 120),
)
def test_whatever_was_resumed_from_stays_accepted_and_limits_only_fall(raw, attempt, step):
    departures: dict[int, Departure] = {}
    for number, (back, at) in enumerate(raw, 1):
        parent = number - back
        departures[number] = Departure(parent, at) if 1 <= parent < number else Departure(None, 0)
    found = chain(departures)

    assert found.newest == len(raw)
    newest = departures[len(raw)]
    if newest.parent is not None:
        assert found.accepts(newest.step, newest.parent) or found.limits[newest.parent] is not None
    # What a longer history refuses, it refused rightly: nothing comes back by another attempt.
    longer = {**departures, len(raw) + 1: Departure(len(raw), 60)}
    if attempt <= len(raw) and chain(longer).accepts(step, attempt):
        assert found.accepts(step, attempt)
