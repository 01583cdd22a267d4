from hypothesis import given
from hypothesis import strategies as st

from harness.signals.majority import Verdict, judge


def test_equal_ranks_differ_nowhere():
    assert judge(["a", "b"], [[1, 2], [1, 2], [1, 2]]) == Verdict((), ())


def test_the_one_of_three_that_stands_alone_is_named_with_its_block():
    assert judge(["a", "b"], [[1, 2], [1, 9], [1, 2]]) == Verdict(("b",), (1,))


def test_two_that_differ_name_nobody():
    verdict = judge(["a"], [[1], [2]])
    assert verdict == Verdict(("a",), ())
    assert verdict.is_ambiguous


def test_what_is_told_of_many_blocks_fits_a_line():
    few, many = Verdict(("a", "b"), (1,)), Verdict(tuple("abcdef"), (1, 12))
    assert (few.blocks, few.odd) == ("a, b", "1")
    assert (many.blocks, many.odd) == ("a, b, c, d, …", "1, 12")
    assert (Verdict(tuple("abcd"), ()).blocks, Verdict((), ()).blocks) == ("a, b, c, d", "")


def test_half_against_half_and_all_against_all_name_nobody():
    assert judge(["a"], [[1], [1], [2], [2]]) == Verdict(("a",), ())
    assert judge(["a"], [[1], [2], [3]]) == Verdict(("a",), ())


def test_two_that_stand_alone_in_different_blocks_are_both_named():
    assert judge(["a", "b"], [[1, 2], [1, 9], [7, 2]]) == Verdict(("a", "b"), (1, 2))


def test_one_block_without_a_majority_takes_the_name_from_all():
    rows = [[1, 1], [1, 1], [1, 2], [5, 2]]
    assert judge(["a", "b"], rows) == Verdict(("a", "b"), ())


@given(st.integers(3, 12), st.integers(1, 5), st.data())
def test_whoever_is_fewer_than_half_is_named_whatever_it_holds(ranks, groups, data):
    odd = data.draw(st.sets(st.integers(0, ranks - 1), min_size=1, max_size=(ranks - 1) // 2))
    rows = [[rank + 1 if rank in odd else 0] * groups for rank in range(ranks)]
    names = [f"block {group}" for group in range(groups)]
    assert judge(names, rows) == Verdict(tuple(names), tuple(sorted(odd)))
