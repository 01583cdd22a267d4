"""Who is named after an audit: hand-made tables of what each rank computed."""

from hypothesis import given
from hypothesis import strategies as st

from harness.signals.audit import arbiter, audited, differing, settle
from harness.signals.majority import Verdict

GROUPS = ("a", "b")


def tables(
    size: int, bad: set[int], persistent: bool
) -> tuple[list[list[int]], list[list[int]], list[list[int]] | None]:
    """Ranks `bad` get block b wrong, each in its own way: in their own step, or in all they compute."""

    def computed(by: int, of: int, again: bool) -> list[int]:
        wrong = by in bad and (persistent or not again)
        return [10 * of, 10 * of + 1 + (100 + by if wrong else 0)]

    own = [computed(rank, rank, again=False) for rank in range(size)]
    theirs = [computed(rank, audited(rank, size), again=True) for rank in range(size)]
    if size == 2:
        return own, theirs, None
    third = [[0, 0] for _ in range(size)]
    for auditor in differing(own, theirs):
        by = arbiter(auditor, size)
        third[by] = computed(by, audited(auditor, size), again=True)
    return own, theirs, third


def test_all_equal_names_nobody():
    assert settle(GROUPS, *tables(3, set(), persistent=False)) == Verdict((), ())


def test_of_three_the_one_whose_gradient_was_hit_is_named():
    assert settle(GROUPS, *tables(3, {1}, persistent=False)) == Verdict(("b",), (1,))


def test_one_that_always_computes_wrongly_is_named_and_not_the_one_it_audits():
    assert settle(GROUPS, *tables(3, {1}, persistent=True)) == Verdict(("b",), (1,))


def test_an_auditor_that_was_hit_itself_is_named():
    own, theirs, third = tables(3, set(), persistent=False)
    theirs[0] = [10, 99]
    assert third is not None
    third[2] = [10, 11]
    assert settle(GROUPS, own, theirs, third) == Verdict(("b",), (0,))


def test_two_ranks_alone_name_nobody():
    assert settle(GROUPS, *tables(2, {1}, persistent=False)) == Verdict(("b",), ())


def test_three_that_all_get_something_else_name_nobody():
    own, theirs, third = tables(3, {1}, persistent=False)
    assert third is not None
    third[2] = [10, 77]
    assert settle(GROUPS, own, theirs, third) == Verdict(("b",), ())


@given(st.integers(3, 9), st.booleans(), st.data())
def test_one_bad_rank_is_named_among_however_many(size, persistent, data):
    bad = data.draw(st.integers(0, size - 1))
    assert settle(GROUPS, *tables(size, {bad}, persistent)) == Verdict(("b",), (bad,))


@given(st.integers(3, 9), st.integers(0, 8))
def test_auditor_audited_and_arbiter_are_three_ranks(size, rank):
    auditor = rank % size
    assert len({auditor, audited(auditor, size), arbiter(auditor, size)}) == 3
