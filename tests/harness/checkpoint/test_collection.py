from hypothesis import given
from hypothesis import strategies as st

from harness.checkpoint.collection import Collected, Decision, Next, decide


def collected(**given_: object) -> Collected:
    values: dict[str, object] = {
        "world_size": 2,
        "failures": {},
        "gone": (),
        "waited_s": 1.0,
        "deadline_s": 10.0,
    }
    return Collected(**{**values, **given_})  # type: ignore[arg-type]


def test_a_save_is_written_once_every_share_is_there():
    assert decide(collected(failures={0: None})) == Decision(Next.WAIT)
    assert decide(collected(failures={0: None, 1: None})) == Decision(Next.WRITE)


def test_what_is_whole_is_written_though_its_ranks_have_died():
    assert decide(collected(failures={0: None, 1: None}, gone={0, 1})) == Decision(Next.WRITE)


def test_the_death_of_a_rank_whose_share_is_missing_ends_the_save_at_once():
    assert decide(collected(failures={0: None}, gone={1})) == Decision(
        Next.FAIL, "rank 1 was gone before its share was copied"
    )


def test_a_rank_without_a_share_ends_the_save_with_its_reason():
    assert decide(collected(failures={0: None, 1: "no memory"})) == Decision(
        Next.FAIL, "rank 1: no memory"
    )


def test_a_failure_waits_for_rank_0_which_may_not_have_told_that_the_save_began():
    assert decide(collected(failures={1: "no memory"})) == Decision(Next.WAIT)
    assert decide(collected(failures={1: "no memory"}, gone={0})).next is Next.FAIL
    assert decide(collected(failures={}, gone={1})) == Decision(Next.WAIT)


def test_a_rank_that_is_not_heard_of_ends_the_save_at_the_deadline():
    assert decide(collected(world_size=3, failures={1: None}, waited_s=10.0)) == Decision(
        Next.FAIL, "no report of rank 0, 2 within 10 s"
    )


@given(
    world_size=st.integers(1, 4),
    failures=st.dictionaries(st.integers(0, 3), st.none() | st.just("bad")),
    gone=st.sets(st.integers(0, 3)),
    waited_s=st.floats(0, 20),
)
def test_nothing_is_written_without_every_share_and_nothing_waits_for_ever(
    world_size, failures, gone, waited_s
):
    failures = {rank: why for rank, why in failures.items() if rank < world_size}
    decision = decide(Collected(world_size, failures, gone, waited_s, 10.0))

    whole = failures == dict.fromkeys(range(world_size))
    assert (decision.next is Next.WRITE) == whole
    assert (decision.reason != "") == (decision.next is Next.FAIL)
    if waited_s >= 10 or set(range(world_size)) <= gone:
        assert decision.next is not Next.WAIT
