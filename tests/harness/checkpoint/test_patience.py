import errno
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.checkpoint.patience import (
    MOST_HUNG,
    Again,
    Call,
    Enough,
    GivenUpError,
    Limits,
    Patience,
    decide,
    may_pass,
    tells_nothing,
)

LIMITS = Limits(timeout_s=60.0, tries=4, first_pause_s=0.1, longest_pause_s=0.3)


class Clock:
    """Time that passes only when someone sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds


def patience(clock: Clock, limits: Limits = LIMITS, draw: float = 0.5) -> Patience:
    return Patience(limits, clock, clock.sleep, lambda: draw)


def test_a_call_worked_by_hand():
    clock = Clock()
    failures = [TimeoutError("slow"), OSError(errno.EIO, "bad"), ConnectionResetError("gone")]

    def act(call: Call[str]) -> str:
        if failures:
            raise failures.pop()
        return "there"

    assert patience(clock).call("look", act) == "there"
    assert clock.pauses == [0.05, 0.1, 0.15]  # half of 0.1, 0.2 and the 0.3 that it is cut to


def test_the_last_of_too_many_failures_is_the_call_s():
    clock = Clock()
    tries = iter(range(1, 100))

    def act(call: Call[None]) -> None:
        raise OSError(errno.EBUSY, f"slow down {next(tries)}")

    with pytest.raises(OSError, match="slow down 4"):
        patience(clock).call("look", act)
    assert len(clock.pauses) == 3


@pytest.mark.parametrize(
    "refusal",
    [
        FileNotFoundError(errno.ENOENT, "none"),
        FileExistsError(errno.EEXIST, "there"),
        PermissionError(errno.EACCES, "no"),
        OSError(errno.ENOSPC, "full"),
        ValueError("not of the storage at all"),
    ],
)
def test_a_refusal_is_never_tried_again(refusal):
    clock, tries = Clock(), []

    def act(call: Call[None]) -> None:
        tries.append(1)
        raise refusal

    with pytest.raises(type(refusal)):
        patience(clock).call("look", act)
    assert (clock.pauses, tries) == ([], [1])


def test_no_pause_goes_beyond_what_the_call_may_take():
    clock = Clock()
    limits = Limits(timeout_s=1.0, tries=100, first_pause_s=0.4, longest_pause_s=10.0)

    def act(call: Call[None]) -> None:
        raise TimeoutError("slow")

    with pytest.raises(TimeoutError, match="slow"):
        patience(clock, limits).call("look", act)
    assert clock.pauses == [0.2, 0.4]  # 0.8 more would end after 1.4 s


def test_a_call_that_hangs_is_given_up_and_says_what_it_was():
    release, seen = threading.Event(), threading.Event()

    def hang(call: Call[None]) -> None:
        release.wait(30)
        try:
            call.moved(1)
        except GivenUpError:
            seen.set()
            raise

    began_s = time.monotonic()
    with pytest.raises(TimeoutError, match=r"did not answer for 0.05 s \(storage_timeout_s\).*f'"):
        Patience(Limits(timeout_s=0.05)).call("write f", hang)
    assert time.monotonic() - began_s < 20
    release.set()
    assert seen.wait(20)  # what was given up does not go on to publish anything


def test_a_call_has_more_time_for_what_it_moves():
    clock = Clock()

    def act(call: Call[str]) -> str:
        call.moved(100_000_000)
        clock.now_s += 65.0
        return "moved"

    assert patience(clock).call("write", act) == "moved"


@given(
    failures=st.integers(1, 20),
    left_s=st.floats(-10, 100),
    passing=st.booleans(),
    draw=st.floats(0, 1, exclude_max=True),
)
def test_pauses_are_bounded_and_fit_into_the_time_that_is_left(failures, left_s, passing, draw):
    match decide(failures, left_s, passing, LIMITS, draw):
        case Again(after_s):
            assert passing
            assert failures < LIMITS.tries
            assert 0 <= after_s < left_s
            assert after_s <= min(
                LIMITS.longest_pause_s, LIMITS.first_pause_s * 2 ** (failures - 1)
            )
        case Enough(reason):
            assert not passing or failures >= LIMITS.tries or left_s <= LIMITS.longest_pause_s
            assert reason


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[threading.Event]]:
    """What each of as many calls as there may be waits for; calls of other tests are not counted."""
    monkeypatch.setattr("harness.checkpoint.patience._hung", [])
    events = [threading.Event() for _ in range(MOST_HUNG)]
    yield events
    for one in events:
        one.set()
    for thread in threading.enumerate():
        if thread.name == "storage-hung call":
            thread.join(60)


def test_calls_that_never_come_back_have_a_bound_and_one_that_does_makes_room_for_another(free):
    waits = iter(free)
    soon = Patience(Limits(timeout_s=0.01))

    def hang(call: Call[None]) -> None:
        next(waits).wait(60)

    for _ in free:
        with pytest.raises(TimeoutError):
            soon.call("hung call", hang)
    before = threading.active_count()
    with pytest.raises(OSError, match="16 calls to the storage have not come back") as refusal:
        Patience(Limits(timeout_s=60.0)).call("look", lambda call: None)
    assert (refusal.value.errno, threading.active_count()) == (errno.ETIME, before)

    hung = [it for it in threading.enumerate() if it.name == "storage-hung call"]
    free[0].set()
    hung[0].join(60)
    assert Patience(Limits(timeout_s=60.0)).call("look", lambda call: 7) == 7


@pytest.mark.parametrize(
    ("error", "passing", "telling_nothing"),
    [
        (ConnectionResetError("gone"), True, True),
        (ConnectionError("without a number"), True, True),
        (TimeoutError("slow"), True, True),
        (OSError(errno.ESTALE, "the server was started again"), True, True),
        (OSError(errno.EIO, "this is how a disk says that it cannot read it"), True, False),
        (OSError(errno.EACCES, "not ours"), False, True),
        (OSError(errno.EMFILE, "too many open files"), False, True),
        (MemoryError(), False, True),
        (FileNotFoundError(errno.ENOENT, "it is not there"), False, False),
        (ValueError("it is no manifest"), False, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_what_may_pass_is_tried_again_and_what_tells_nothing_condemns_no_file(
    error: Exception, passing: bool, telling_nothing: bool
):
    assert (may_pass(error), tells_nothing(error)) == (passing, telling_nothing)
