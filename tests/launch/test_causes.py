"""Which rank ended an attempt, and why."""

from dataclasses import replace
from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.events import Cause
from harness.slots import Mark
from launch.causes import Blame, blame, hang, is_consequence, is_settled
from launch.exits import Exit, Raised
from launch.stacks import Doing, doing
from launch.watchdog import Alarm, Bound

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


def test_a_rank_that_was_refused_is_not_blamed_for_what_rank_0_was_refused_for():
    mistake = "join: keep = 0 is below 1"
    first = Raised("ValueError", f"ValueError: {mistake}", "settings.py:118", at_ns=90)
    told = Raised("ValueError", f"ValueError: rank 0 refused to start: {mistake}", "", at_ns=80)
    assert blame([Exit(1, 1, at_ns=85, raised=told), Exit(0, 1, at_ns=95, raised=first)]) == Blame(
        0, Cause.EXCEPTION, f"ValueError: {mistake}", f"ValueError: {mistake} at settings.py:118"
    )


def test_a_killed_rank_beats_a_peer_that_lost_it_and_was_seen_first():
    assert all(blame(order).rank == 1 for order in permutations([LOST_PEER, SIGKILLED]))


def test_an_exception_is_blamed_on_the_rank_that_raised_it_first_not_on_the_first_to_exit():
    later = Exit(3, -15, at_ns=110)
    assert blame([later, MISTAKEN, LOST_PEER]) == Blame(
        2,
        Cause.EXCEPTION,
        "ValueError: no such token …",
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


def test_memory_that_ran_out_is_told_by_other_kinds_of_exceptions_too():
    worker = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. "
    allocator = "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried"

    def cause(kind: str, message: str, *, short: bool = False) -> Cause:
        return blame(
            [Exit(1, 1, 1, raised=Raised(kind, message, "", 1))], out_of_memory=short
        ).cause

    assert cause("RuntimeError", allocator) is Cause.OOM
    assert cause("_ArrayMemoryError", "_ArrayMemoryError: Unable to allocate") is Cause.OOM
    assert cause("RuntimeError", worker) is Cause.EXCEPTION
    assert cause("RuntimeError", worker, short=True) is Cause.OOM


def test_sigterm_to_a_rank_or_to_its_loader_worker_is_a_preemption():
    assert blame([Exit(1, -15, at_ns=1)]) == Blame(
        1, Cause.PREEMPTION, "told to leave by SIGTERM", ""
    )
    text = "RuntimeError: DataLoader worker (pid 9) is killed by signal: Terminated. "
    raised = Raised("RuntimeError", text, "train.py:3", at_ns=1)
    assert blame([Exit(1, 1, at_ns=1, raised=raised)]) == Blame(
        1, Cause.PREEMPTION, "lost a loader worker that was told to leave by SIGTERM", ""
    )
    killed = Raised("RuntimeError", text.replace("Terminated", "Killed"), "train.py:3", at_ns=1)
    assert blame([Exit(1, 1, at_ns=1, raised=killed)]).cause is Cause.EXCEPTION


def test_an_early_exit_tells_how_far_it_came():
    early = Exit(1, 0, at_ns=1, mark=Mark.STEPPING, step=7)
    assert blame([early]) == Blame(
        1,
        Cause.EXIT,
        "left with exit code 0 before the job was done, after step 7",
        "exit code 0",
    )
    assert blame([Exit(1, 3, at_ns=1)]) == Blame(1, Cause.EXIT, "exit code 3", "exit code 3")


def test_what_a_script_says_as_it_leaves_is_why():
    said = Raised("SystemExit", "SystemExit: no data\nat all", "train.py:3", at_ns=1)
    assert blame([Exit(1, 1, at_ns=1, raised=said)]) == Blame(
        1, Cause.EXIT, "exit code 1: no data …", "SystemExit: no data\nat all at train.py:3"
    )


@pytest.mark.parametrize(
    ("own", "another_s", "cause"),
    [
        ("NonfiniteError", "NonfiniteGradientError", Cause.NONFINITE),
        ("CorruptionError", "CorruptPeerError", Cause.CORRUPTION),
    ],
)
def test_a_rank_that_tells_of_another_one_is_blamed_after_it_and_shows_a_mistake_too(
    own, another_s, cause
):
    first = Exit(0, 1, 10, raised=Raised(another_s, f"{another_s}: step 4", "health.py:9", 1))
    culprit = Exit(2, 1, 20, raised=Raised(own, f"{own}: step 4", "health.py:7", 2))
    found = blame([first, culprit])
    assert (found.rank, found.cause) == (2, cause)
    alone = blame([first])
    assert (alone.rank, alone.cause) == (0, cause)
    assert alone.signature == f"{another_s}: step 4 at health.py:9"
    assert not is_settled([first])
    assert is_settled([first, culprit])


def test_an_outage_of_the_storage_is_no_mistake_however_often_it_is_met():
    raised = Raised("OutageError", "OutageError: s3://b cannot be used now", "job.py:90", at_ns=1)
    assert blame([Exit(0, 1, at_ns=2, raised=raised)]).signature == ""


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


# ── hangs ───────────────────────────────────────────────────────────────────────────────────────

ALARM = Alarm(
    (1,), "in step 8, in the optimizer", 2_600_000_000, Bound(2_500_000_000, "--hang-after")
)
REASON = "made no progress for 2.6 s in step 8, in the optimizer (limit: 2.5 s, --hang-after)"
SIGNATURE = "a hang in step 8, in the optimizer"


def test_the_rank_that_came_least_far_is_blamed_for_a_hang():
    for what in (Doing.ELSEWHERE, Doing.UNCLEAR):
        assert hang(ALARM, {0: Doing.WAITING, 1: what}) == Blame(1, Cause.HANG, REASON, SIGNATURE)


def test_a_stopped_rank_is_blamed_whoever_waits_for_it_and_chance_is_why():
    stopped = {0: Doing.WAITING, 1: Doing.STOPPED}
    assert hang(ALARM, stopped) == Blame(1, Cause.HANG, f"is stopped: {REASON}", "")
    ahead = {0: Doing.STOPPED, 1: Doing.WAITING}
    assert hang(ALARM, ahead) == Blame(0, Cause.HANG, f"is stopped: rank 1 {REASON}", "")


def test_equals_are_told_apart_by_who_does_not_wait():
    equals = replace(ALARM, suspects=(0, 1, 2))
    assert hang(equals, {0: Doing.WAITING, 1: Doing.UNCLEAR, 2: Doing.ELSEWHERE}).rank == 2


def test_nobody_is_blamed_where_nobody_stands_out():
    nobody = Blame(None, Cause.HANG, f"rank 1 {REASON}; no rank stands out", SIGNATURE)
    assert hang(ALARM, {0: Doing.UNCLEAR, 1: Doing.WAITING}) == nobody
    equals = replace(ALARM, suspects=(0, 1))
    for what in (Doing.WAITING, Doing.ELSEWHERE, Doing.UNCLEAR):
        assert hang(equals, {0: what, 1: what}).rank is None


def _stacks(*files: str) -> str:
    """What faulthandler writes of a process with two threads, the main one last."""
    frames = "".join(f'  File "{file}", line 7 in work\n' for file in files)
    other = '  File "/lib/threading.py", line 331 in wait\n'
    return (
        f"Thread 0x7f5ea67fc6c0 (most recent call first):\n{other}\n"
        f"Current thread 0x7f5ecfbcbb80 (most recent call first):\n{frames}"
    )


def test_what_a_rank_was_doing_is_read_from_the_innermost_frames_of_its_main_thread():
    collective = "/site-packages/torch/distributed/distributed_c10d.py"
    assert doing(_stacks(collective, "/site-packages/torch/x.py", "train.py")) is Doing.WAITING
    assert doing(_stacks("/lib/threading.py", "/harness/checkpoint/messages.py")) is Doing.WAITING
    assert doing(_stacks("train.py", "a.py", "b.py", collective)) is Doing.ELSEWHERE
    assert doing(_stacks("/site-packages/torch/autograd/graph.py", "train.py")) is Doing.UNCLEAR
    assert doing("") is Doing.UNCLEAR


def test_what_a_worker_of_a_loader_raised_is_said_and_not_that_it_did():
    message = (
        "RuntimeError: Caught RuntimeError in DataLoader worker process 0.\n"
        "Original Traceback (most recent call last):\n  File ...\n"
        "RuntimeError: unable to allocate shared memory(shm): No space left on device (28)\n"
    )
    raised = Raised("RuntimeError", message, "train.py:12", at_ns=80)
    assert blame([Exit(0, 1, at_ns=100, raised=raised)]).reason == (
        "RuntimeError: unable to allocate shared memory(shm): No space left on device (28)"
    )
