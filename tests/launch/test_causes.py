"""Which rank ended an attempt, and why."""

from dataclasses import replace
from itertools import permutations
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from harness.events import Cause
from harness.slots import Mark
from launch.causes import Blame, blame, is_consequence, is_settled
from launch.exits import Exit, Raised

CLOSED = Raised(
    "RuntimeError",
    "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:34",
    "train.py:30",
    at_ns=90,
)
VALUE = Raised("ValueError", "ValueError: no such token\nin line 3", "train.py:12", at_ns=80)
SIGKILLED = Exit(1, -9, at_ns=100)
LOST_PEER = Exit(0, 1, at_ns=95, raised=CLOSED)
MISTAKEN = Exit(2, 1, at_ns=120, raised=VALUE)


def test_a_kill_is_blamed_on_the_rank_that_was_killed():
    assert blame([SIGKILLED]) == Blame(1, Cause.SIGNAL, "killed by SIGKILL", "")
    assert str(blame([SIGKILLED])) == "rank 1 killed by SIGKILL"


def test_a_killed_rank_beats_a_peer_that_lost_it_and_was_seen_first():
    assert all(blame(order).rank == 1 for order in permutations([LOST_PEER, SIGKILLED]))


def test_an_exception_is_blamed_on_the_rank_that_raised_it_first_not_on_the_first_to_exit():
    later = Exit(3, -15, at_ns=110)
    assert blame([later, MISTAKEN, LOST_PEER]) == Blame(
        2,
        Cause.EXCEPTION,
        "ValueError: no such token",
        "ValueError: no such token\nin line 3 at train.py:12",
    )


def test_an_abort_by_nccl_is_the_loss_of_a_peer():
    assert blame([Exit(0, -6, at_ns=70), SIGKILLED]).rank == 1
    assert not is_settled([Exit(0, -6, at_ns=70)])


def test_a_lost_peer_alone_is_waited_for_and_in_the_end_blamed():
    assert not is_settled([LOST_PEER])
    assert is_settled([LOST_PEER, SIGKILLED])
    assert blame([LOST_PEER]).cause is Cause.EXCEPTION
    assert blame([LOST_PEER]).signature == ""


def test_a_kill_while_memory_ran_out_is_told_as_such():
    assert blame([SIGKILLED], out_of_memory=True).cause is Cause.OOM
    assert blame([Exit(1, -11, at_ns=1)], out_of_memory=True).cause is Cause.SIGNAL
    raised = Raised("OutOfMemoryError", "OutOfMemoryError: 2 GiB", "t.py:1", 1)
    assert blame([Exit(1, 1, at_ns=1, raised=raised)]).cause is Cause.OOM


def test_an_early_exit_tells_how_far_it_came():
    early = Exit(1, 0, at_ns=1, mark=Mark.STEPPING, step=7)
    assert blame([early]) == Blame(
        1,
        Cause.EXIT,
        "left with exit code 0 before the job was done, after step 7",
        "exit code 0",
    )
    assert blame([Exit(1, 3, at_ns=1)]) == Blame(1, Cause.EXIT, "exit code 3", "exit code 3")


def test_only_what_the_program_did_leaves_a_signature():
    assert blame([Exit(0, -11, at_ns=1)]).signature == "SIGSEGV"
    assert [blame([Exit(0, -number, at_ns=1)]).signature for number in (9, 15, 2, 1)] == [""] * 4


EXITS = st.builds(
    Exit,
    rank=st.integers(0, 7),
    status=st.integers(-15, 130),
    at_ns=st.integers(0, 1000),
    raised=st.none() | st.sampled_from([replace(CLOSED, at_ns=None), replace(VALUE, at_ns=None)]),
)


@given(
    st.lists(EXITS, min_size=1, unique_by=(lambda exit_: exit_.rank, lambda exit_: exit_.at_ns)),
    st.randoms(use_true_random=False),
)
def test_the_order_in_which_exits_are_seen_decides_nothing(exits: list[Exit], random: Random):
    shuffled = random.sample(exits, len(exits))
    assert blame(shuffled) == blame(exits)


@given(st.lists(EXITS, min_size=1, unique_by=lambda exit_: exit_.rank))
def test_no_rank_that_lost_a_peer_is_blamed_beside_one_that_did_not(exits: list[Exit]):
    culprit = next(exit_ for exit_ in exits if exit_.rank == blame(exits).rank)
    assert is_consequence(culprit) == (not is_settled(exits))
