from hypothesis import given
from hypothesis import strategies as st

from harness.checkpoint.division import readers


def test_the_largest_files_go_first_and_each_to_who_has_least():
    sizes = {"a": 10, "b": 50, "c": 40, "d": 15, "state": 1}

    assert readers(sizes, [4, 5]) == {4: ["b", "a"], 5: ["c", "d", "state"]}


def test_a_rank_for_which_nothing_is_left_reads_nothing():
    assert readers({"a": 1}, [0, 1, 2]) == {0: ["a"], 1: [], 2: []}


@given(
    st.dictionaries(st.text(max_size=3), st.integers(0, 1000), max_size=30),
    st.lists(st.integers(0, 99), min_size=1, max_size=8, unique=True),
)
def test_every_file_is_read_once_and_no_rank_reads_more_than_its_part_and_one_file(sizes, ranks):
    divided = readers(sizes, ranks)

    assert sorted(name for names in divided.values() for name in names) == sorted(sizes)
    assert list(divided) == ranks
    fair = sum(sizes.values()) / len(ranks)
    largest = max(sizes.values(), default=0)
    for names in divided.values():
        assert sum(sizes[name] for name in names) <= fair + largest
