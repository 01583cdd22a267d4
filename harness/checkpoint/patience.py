"""How long a call to the storage may take, and when it is tried again.

A call runs in a thread of its own and is given up on, whatever it hangs in. What may pass (time-outs, a
busy server, a broken connection) is tried again after a random pause; a refusal never is.
"""

import errno
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

SLOWEST_BYTES_PER_S = 10_000_000
"""A call has this much more time for what it moves: 200 s for a shard of 2 GB."""

MOST_HUNG = 16
"""Each call that never comes back keeps a thread; with so many of them no more are made."""

_PASSING_ERRNOS = frozenset({
    errno.EIO, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ESTALE,
    errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EPIPE, errno.ENETDOWN,
    errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETRESET, errno.EHOSTDOWN,
})  # fmt: skip

_OURS = frozenset({
    errno.EACCES, errno.EPERM, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE,
})  # fmt: skip
"""Failures of who asks: another one might be answered."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how often."""

    timeout_s: float
    """For a call with all its tries, beside what it has for the bytes that it moves."""
    tries: int = 8
    first_pause_s: float = 0.1
    """The longest pause after the first failure; it doubles with each one."""
    longest_pause_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Again:
    """Try again."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Enough:
    """The last failure is the call's."""

    reason: str


def decide(
    failures: int, left_s: float, passing: bool, limits: Limits, draw: float
) -> Again | Enough:
    """What follows the `failures`-th failure with `left_s` seconds to go; `draw` is in [0, 1).

    A failure that is not `passing` would only come again. The pause is drawn from the whole range up
    to its limit ("full jitter"), so that ranks which failed together do not come back together.
    """
    if not passing:
        return Enough("it is a refusal")
    if failures >= limits.tries:
        return Enough(f"it failed {failures} times")
    most_s = min(limits.longest_pause_s, limits.first_pause_s * 2 ** (failures - 1))
    after_s = draw * most_s
    if after_s >= left_s:
        return Enough("there is no time left")
    return Again(after_s)


def may_pass(error: BaseException) -> bool:
    """True for a failure that the same call might not meet again."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    return isinstance(error, OSError) and error.errno in _PASSING_ERRNOS


def tells_nothing(error: BaseException) -> bool:
    """True for a failure that is the storage's, or this machine's, whatever file was asked for.

    EIO is left out: it is how a disk says that it cannot read one of them.
    """
    if isinstance(error, ConnectionError | TimeoutError | MemoryError):
        return True
    elsewhere = _PASSING_ERRNOS - {errno.EIO} | _OURS
    return isinstance(error, OSError) and error.errno in elsewhere


class GivenUpError(Exception):
    """Nobody waits for this call any more; raised in its own thread."""


@dataclass(slots=True)
class Call(Generic[Result]):
    """One try at a call, and how far it got."""

    act: Callable[["Call[Result]"], Result]
    moved_bytes: int = 0
    done: threading.Event = field(default_factory=threading.Event)
    results: list[Result] = field(default_factory=list)
    error: BaseException | None = None
    given_up: bool = False

    def moved(self, count: int) -> None:
        """`count` more bytes are on their way. Raises `GivenUpError` if nobody waits any more."""
        if self.given_up:
            raise GivenUpError
        self.moved_bytes += count

    def run(self) -> None:
        """Act; whatever comes of it is kept."""
        try:
            self.results.append(self.act(self))
        except BaseException as error:  # noqa: BLE001  # raised again where the call was made
            self.error = error
        self.done.set()


_hung: list[threading.Event] = []
"""What tells that a call which this process gave up on has ended after all."""
_hung_lock = threading.Lock()


def _check_hung(what: str) -> None:
    with _hung_lock:
        _hung[:] = [done for done in _hung if not done.is_set()]
        count = len(_hung)
    if count >= MOST_HUNG:
        raise OSError(
            errno.ETIME,
            f"{count} calls to the storage have not come back, and no more are made until one does:"
            " is its server, or the mount, still there?",
            what,
        )


@dataclass(frozen=True, slots=True)
class Patience:
    """Carries out calls within limits. `clock`, `sleep` and `draw` are the real ones or a test's."""

    limits: Limits
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = secrets.SystemRandom().random

    def call(self, what: str, act: Callable[[Call[Result]], Result]) -> Result:
        """What `act` returns. It is told of bytes by `moved`, and may be called several times.

        Raises what `act` raised last, or `TimeoutError` if it did not end in time; `OSError` at once
        where too many calls of this process have not ended yet.
        """
        _check_hung(what)
        began_s = self.clock()

        def once() -> Result:
            call = Call(act)
            threading.Thread(target=call.run, name=f"storage-{what}", daemon=True).start()
            self._await(call, what, began_s)
            if call.error is not None:
                raise call.error
            return call.results[0]

        return self.retried(once)

    def retried(self, act: Callable[[], Result]) -> Result:
        """What `act` returns, tried again for as long as that may help; raises what it raised last."""
        until_s = self.clock() + self.limits.timeout_s
        failures = 0
        while True:
            try:
                return act()
            except OSError as error:
                failures += 1
                left_s, passing = until_s - self.clock(), may_pass(error)
                following = decide(failures, left_s, passing, self.limits, self.draw())
                if isinstance(following, Enough):
                    raise
                self.sleep(following.after_s)

    def _await(self, call: Call[Result], what: str, began_s: float) -> None:
        while not call.done.wait(max(0.0, left_s := self._left_s(call, began_s))):
            if left_s <= 0:
                call.given_up = True
                with _hung_lock:
                    _hung.append(call.done)
                raise TimeoutError(
                    errno.ETIMEDOUT,
                    f"the storage did not answer for {self.limits.timeout_s:g} s"
                    " (storage_timeout_s)",
                    what,
                )

    def _left_s(self, call: Call[Result], began_s: float) -> float:
        allowed_s = self.limits.timeout_s + call.moved_bytes / SLOWEST_BYTES_PER_S
        return allowed_s - (self.clock() - began_s)
