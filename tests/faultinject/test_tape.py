import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultinject import tape
from faultinject.tape import (
    AnyRank,
    Arrival,
    Choice,
    Exponential,
    Fault,
    Instants,
    Plan,
    Rank,
    Tape,
    Uniform,
)

KILL = Choice("kill")


def gaps(made: Tape) -> list[float]:
    return [later - earlier for earlier, later in pairwise([0.0, *(f.at_s for f in made.faults)])]


def many(arrival: Arrival, seed: int = 1, ranks: int = 4, count: int = 10_000) -> Tape:
    return tape.compile(Plan(arrival, (KILL,), count, seed), ranks)


seeds = st.integers(-(2**70), 2**70)
arrivals = st.one_of(
    st.floats(0.001, 1e9).map(Exponential),
    st.tuples(st.floats(0, 1e6), st.floats(0.001, 1e6)).map(lambda p: Uniform(p[0], p[0] + p[1])),
    st.lists(st.floats(0, 1e9), min_size=1, max_size=30).map(lambda at: Instants(tuple(at))),
)
choices = st.lists(
    st.builds(
        Choice,
        kind=st.sampled_from(["kill", "stop", "slow"]),
        weight=st.floats(0.01, 100),
        target=st.one_of(st.just(AnyRank()), st.integers(0, 3).map(Rank)),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda choice: (choice.kind, str(choice.target)),
)


def test_a_tape_worked_by_hand():
    plan = Plan(Instants((9.5, 2, 4)), (Choice("kill", target=Rank(1)),), 2, start_delay_s=10)

    made = tape.compile(plan, 2)

    assert made == Tape(
        seed=0,
        plan=tape.digest(plan),
        world_size=2,
        faults=(Fault("f1", 12.0, "kill", Rank(1)), Fault("f2", 14.0, "kill", Rank(1))),
    )


def test_the_draws_are_the_same_in_every_version_of_this_library():
    made = tape.compile(Plan(Exponential(60), (KILL, Choice("slow")), 3, seed=42), 8)

    assert made.faults == (
        Fault("f1", 5.988818, "slow", Rank(3)),
        Fault("f2", 16.698959, "slow", Rank(6)),
        Fault("f3", 84.850142, "kill", Rank(1)),
    )


def test_exponential_gaps_have_the_stated_mean():
    assert math.isclose(sum(gaps(many(Exponential(11_160)))) / 10_000, 11_160, rel_tol=0.03)


def test_exponential_gaps_pass_the_kolmogorov_smirnov_test():
    shares = sorted(1 - math.exp(-gap / 300) for gap in gaps(many(Exponential(300), seed=5)))
    distance = max(
        max((place + 1) / len(shares) - share, share - place / len(shares))
        for place, share in enumerate(shares)
    )

    assert distance < 1.63 / math.sqrt(len(shares))  # the 1 % point of Kolmogorov's distribution


def test_gaps_do_not_depend_on_the_ones_before_them():
    found = gaps(many(Exponential(1.0), seed=3))
    product = sum((a - 1) * (b - 1) for a, b in pairwise(found)) / len(found)

    assert abs(product) < 3 / math.sqrt(len(found))


def test_uniform_gaps_lie_between_their_bounds_and_fill_them():
    found = gaps(many(Uniform(20, 60)))

    assert min(found) + 1e-6 >= 20
    assert min(found) < 20.1
    assert 59.9 < max(found) <= 60 + 1e-6
    assert math.isclose(sum(found) / len(found), 40, rel_tol=0.03)


def test_targets_are_uniform_over_the_ranks():
    counts = Counter(fault.target.number for fault in many(Exponential(1), ranks=8).faults)
    expected = 10_000 / 8
    chi_square = sum((counts[rank] - expected) ** 2 / expected for rank in range(8))

    assert sorted(counts) == list(range(8))
    assert chi_square < 18.48  # the 1 % point at 7 degrees of freedom


def test_kinds_are_drawn_by_weight():
    plan = Plan(Exponential(1), (Choice("kill", 3), Choice("slow", 1)), 10_000, seed=2)
    counts = Counter(fault.kind for fault in tape.compile(plan, 2).faults)

    assert math.isclose(counts["kill"] / 10_000, 0.75, rel_tol=0.03)


def test_a_kind_that_is_added_takes_instants_over_and_moves_nothing_else():
    before = tape.compile(Plan(Exponential(60), (KILL,), 1000, seed=9), 4)
    after = tape.compile(Plan(Exponential(60), (Choice("new"), KILL), 1000, seed=9), 4)

    assert [fault.at_s for fault in after.faults] == [fault.at_s for fault in before.faults]
    kept = [fault for fault in after.faults if fault.kind == "kill"]
    assert set(kept) < set(before.faults)
    assert 400 < len(kept) < 600


@given(arrivals, choices, choices, seeds)
def test_no_choice_that_is_added_changes_what_the_others_keep(arrival, first, second, seed):
    known = {(choice.kind, choice.target) for choice in first}
    added = [choice for choice in second if (choice.kind, choice.target) not in known]
    before = tape.compile(Plan(arrival, tuple(first), 20, seed), 4).faults
    after = tape.compile(Plan(arrival, (*added, *first), 20, seed), 4).faults
    only_added = tape.compile(Plan(arrival, tuple(added or first), 20, seed), 4).faults

    assert all(
        fault in (old, new) for fault, old, new in zip(after, before, only_added, strict=True)
    )


@given(arrivals, choices, seeds, st.integers(0, 20))
def test_a_longer_tape_begins_with_the_shorter_one(arrival, chosen, seed, count):
    shorter = tape.compile(Plan(arrival, tuple(chosen), count, seed), 4).faults
    longer = tape.compile(Plan(arrival, tuple(chosen), count + 7, seed), 4).faults

    assert longer[: len(shorter)] == shorter
    assert len(longer) <= count + 7


@given(arrivals, choices, seeds, st.integers(4, 10**6))
def test_the_number_of_ranks_moves_no_instant_and_no_kind(arrival, chosen, seed, ranks):
    plan = Plan(arrival, tuple(chosen), 20, seed)
    few, many = tape.compile(plan, 4).faults, tape.compile(plan, ranks).faults

    assert [(f.id, f.at_s, f.kind) for f in few] == [(f.id, f.at_s, f.kind) for f in many]
    assert all(0 <= fault.target.number < ranks for fault in many)


@given(arrivals, choices, seeds)
def test_a_tape_is_in_order_and_its_ids_differ(arrival, chosen, seed):
    faults = tape.compile(Plan(arrival, tuple(chosen), 20, seed), 4).faults

    assert list(faults) == sorted(faults, key=lambda fault: fault.at_s)
    assert len({fault.id for fault in faults}) == len(faults)


def test_the_same_seed_gives_the_same_tape_and_another_seed_another():
    plan = Plan(Exponential(60), (KILL,), 50, seed=1)

    assert tape.compile(plan, 2) == tape.compile(plan, 2)
    other = tape.compile(Plan(Exponential(60), (KILL,), 50, seed=2), 2)
    assert not {f.at_s for f in tape.compile(plan, 2).faults} & {f.at_s for f in other.faults}


def test_every_rank_that_a_plan_aims_at_and_the_job_has_not_is_named():
    plan = Plan(Exponential(1), (Choice("kill", target=Rank(2)), Choice("x", target=Rank(9))), 3)

    with pytest.raises(ValueError, match="rank 2") as caught:
        tape.compile(plan, 2)

    assert str(caught.value).splitlines() == [
        "target 'rank 2' does not exist at 2 ranks; known: any rank, rank 0 to rank 1",
        "target 'rank 9' does not exist at 2 ranks; known: any rank, rank 0 to rank 1",
    ]


@pytest.mark.parametrize("text", ["any rank", "rank 0", "rank 12"])
def test_a_target_reads_as_it_is_written(text):
    assert str(tape.target(text)) == text


@pytest.mark.parametrize(
    "text", ["", "rank", "rank -1", "rank 1.5", "all ranks", "rank ٣", "node 0"]
)
def test_an_unknown_target_is_refused_with_the_known_ones(text):
    with pytest.raises(ValueError, match=r"unknown target .*; known: any rank, rank N"):
        tape.target(text)
