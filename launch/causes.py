"""Which rank ended an attempt, and why. Decides, from the exits of all ranks.

The first to exit is not blindly the one to blame: when a rank is killed, its peers fail within
milliseconds because their connections break, and one of them may well be noticed first.
"""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.checkpoint.refusals import OutageError
from harness.events import Cause
from harness.signals.unsound import (
    CorruptionError,
    CorruptPeerError,
    NonfiniteError,
    NonfiniteGradientError,
)
from launch.exits import Exit, Raised, ending, signal_name
from launch.stacks import Doing
from launch.watchdog import Alarm

OUT_OF_MEMORY = ("MemoryError", "_ArrayMemoryError", "OutOfMemoryError")
NO_MEMORY_LEFT = ("can't allocate memory", "cuda error: out of memory", "cannot allocate memory")
"""What torch and the system say in exceptions of other kinds."""
PEER_LOST = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "connection was likely closed",
    "connectfullmesh failed",
    "broken pipe",
    "timed out waiting",
    "socket timeout",
    "wait timeout",
    "remote process exited",
    "remote error",
    "communicator was aborted",
    "no longer healthy",
    "failed to recv",
    "failed to send",
    "rank 0 refused to start",
)
"""What gloo, NCCL, the store and `join` say on a rank when another one is gone."""
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that say nothing of the program: that it died of one twice is no sign of a mistake in it."""
UNSOUND = {
    NonfiniteError.__name__: Cause.NONFINITE,
    NonfiniteGradientError.__name__: Cause.NONFINITE,
    CorruptionError.__name__: Cause.CORRUPTION,
    CorruptPeerError.__name__: Cause.CORRUPTION,
}
"""Exceptions that ranks raise rather than keep a state."""
ANOTHER_S = (NonfiniteGradientError.__name__, CorruptPeerError.__name__)
"""Those of them by which a rank tells of what another one may have done."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Which rank ended the attempt, and why."""

    rank: int | None
    """None if it was no rank."""
    cause: Cause
    reason: str
    signature: str
    """Equal for two failures that look like the same mistake; empty where chance is to blame."""

    def __str__(self) -> str:
        return self.reason if self.rank is None else f"rank {self.rank} {self.reason}"


def blame(failed: Sequence[Exit], *, out_of_memory: bool = False) -> Blame:
    """Whom to blame of those that failed, at least one.

    `out_of_memory` says that the kernel killed a process of this machine or container for memory
    while the attempt ran.
    """
    culprit = min(failed, key=lambda exit_: (is_consequence(exit_), _when_ns(exit_)))
    cause, reason = _cause(culprit, out_of_memory)
    return Blame(culprit.rank, cause, reason, _signature(culprit))


def hang(alarm: Alarm, doing: Mapping[int, Doing]) -> Blame:
    """Whom to blame for a hang, by what each rank that lives was doing; nobody where none stands out.

    A rank that came less far than all others is the one they wait for, unless it waits itself: then
    another has left it alone in a collective. Equals are told apart by their stacks.
    """
    stopped = [rank for rank, what in doing.items() if what is Doing.STOPPED]
    if stopped:
        rank = next((it for it in alarm.suspects if it in stopped), min(stopped))
        return Blame(rank, Cause.HANG, f"is stopped: {_of(alarm, rank)}{alarm.reason}", "")
    free = [rank for rank in alarm.suspects if doing.get(rank) is not Doing.WAITING]
    if len(alarm.suspects) > 1:
        free = [rank for rank in free if doing.get(rank) is Doing.ELSEWHERE]
    signature = f"a hang {alarm.doing}"
    if len(free) == 1:
        return Blame(free[0], Cause.HANG, alarm.reason, signature)
    ranks = ", ".join(map(str, alarm.suspects))
    return Blame(None, Cause.HANG, f"rank {ranks} {alarm.reason}; no rank stands out", signature)


def _of(alarm: Alarm, rank: int) -> str:
    return "" if rank in alarm.suspects else f"rank {alarm.suspects[0]} "


def is_settled(failed: Sequence[Exit]) -> bool:
    """False while all that failed may have failed because of a rank whose end is yet to be seen."""
    return not all(is_consequence(exit_) for exit_ in failed)


def is_consequence(exit_: Exit) -> bool:
    """True if the exit looks like that of a rank that another one has brought down."""
    return _lost_peer(exit_) or (exit_.raised is not None and exit_.raised.kind in ANOTHER_S)


def _lost_peer(exit_: Exit) -> bool:
    if exit_.status == -signal.SIGABRT and exit_.raised is None:
        return True  # NCCL's watchdog aborts a rank whose peer is gone
    if exit_.raised is None:
        return False
    text = exit_.raised.message.lower()
    return any(sign in text for sign in PEER_LOST)


def _when_ns(exit_: Exit) -> int:
    """When the rank was lost: a Python process takes its time from an exception to its exit."""
    if exit_.raised is None or exit_.raised.at_ns is None:
        return exit_.at_ns
    return exit_.raised.at_ns


def _cause(exit_: Exit, out_of_memory: bool) -> tuple[Cause, str]:
    if exit_.status < 0:
        return _killed(-exit_.status, out_of_memory)
    if _is_told_worker(exit_):
        return Cause.PREEMPTION, "lost a loader worker that was told to leave by SIGTERM"
    if exit_.raised is not None and exit_.raised.kind == SystemExit.__name__:
        words = exit_.raised.message.removeprefix(f"{exit_.raised.kind}: ")
        return Cause.EXIT, f"{ending(exit_.status)}: {_line(words)}"
    if exit_.raised is not None:
        cause = Cause.OOM if _ran_out(exit_.raised, out_of_memory) else Cause.EXCEPTION
        cause = UNSOUND.get(exit_.raised.kind, cause)
        return cause, _line(exit_.raised.message)
    if exit_.status == 0:
        after = "" if exit_.step is None else f", after step {exit_.step}"
        return Cause.EXIT, f"left with exit code 0 before the job was done{after}"
    return Cause.EXIT, ending(exit_.status)


def _line(message: str) -> str:
    """What to say of it in one line: of a loader's worker, what that raised itself."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if not lines or "Original Traceback" in message:
        return lines[-1] if lines else ""
    return f"{lines[0]} …" if len(lines) > 1 else lines[0]


def _ran_out(raised: Raised, out_of_memory: bool) -> bool:
    text = raised.message.lower()
    # A loader that lost a worker says so, and only the kernel knows of what.
    lost_worker = "is killed by signal: killed" in text
    return (
        raised.kind in OUT_OF_MEMORY
        or any(sign in text for sign in NO_MEMORY_LEFT)
        or (out_of_memory and lost_worker)
    )


def _killed(number: int, out_of_memory: bool) -> tuple[Cause, str]:
    name = signal_name(number)
    if number == signal.SIGTERM:
        return Cause.PREEMPTION, f"told to leave by {name}"
    if out_of_memory and number == signal.SIGKILL:
        return Cause.OOM, f"killed by {name}: the machine or container is out of memory"
    return Cause.SIGNAL, f"killed by {name}"


def _is_told_worker(exit_: Exit) -> bool:
    """True for what torch raises in a rank whose loader worker died of SIGTERM."""
    message = "" if exit_.raised is None else exit_.raised.message
    return "DataLoader worker" in message and "killed by signal: Terminated" in message


def _signature(exit_: Exit) -> str:
    if _lost_peer(exit_) or -exit_.status in FROM_OUTSIDE or _is_told_worker(exit_):
        return ""
    if exit_.raised is not None:
        if exit_.raised.kind == OutageError.__name__:
            return ""  # the same again and again is what an outage looks like, and no mistake
        return f"{exit_.raised.message} at {exit_.raised.where}"
    return ending(exit_.status)
