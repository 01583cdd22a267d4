"""Decides, counts and logs how calls to the storage are spoilt; what is logged then acts at once.

Each process that opens the storage has one of these, over the same tape, counts and log.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from faultinject import tapefile
from faultinject.counts import Count, Counts
from faultinject.draws import share
from faultinject.rules import Kind, Operation, Rule
from faultinject.tape import Tape
from harness import settings
from harness.events import Event, FaultInjected, FaultLifted
from harness.recorder import Recorder
from harness.rundir import RunDir

WRITER = "store"
WAY_OUT = (
    "start the run by `harness run --faults PLAN --checkpoints chaos::…`, or name the storage"
    " without chaos::"
)


@dataclass(frozen=True, slots=True)
class Hit:
    """One call that one rule spoils."""

    rule: Rule
    place: int
    """Of the rule on the tape."""
    number: int
    """How many the rule has spoilt, with this one; 0 as long as an `enospc` has found room for all bytes."""
    seed: int
    what: str
    """The operation and the name."""
    lift: Callable[[str], None]
    """Log that the hit of this id is over."""
    take: Callable[[int], "tuple[int, Hit | None]"]
    """`enospc`: how many of so many bytes still find room, and the hit, in the log by now, if not all do."""

    @property
    def id(self) -> str:
        """Its name in the log."""
        return f"s{self.place + 1}.{self.number}"

    def strike(self) -> None:
        """Fail, or wait, if that is what the rule does. Raises `OSError`."""
        match self.rule.kind:
            case Kind.EIO:
                raise self.error(errno.EIO, "input/output error")
            case Kind.THROTTLE:
                # What s3fs makes of `SlowDown`, once its own patience is over.
                raise self.error(errno.EBUSY, "503 SlowDown: please reduce your request rate")
            case Kind.LATENCY:
                self._wait()
            case Kind.HANG:
                self._wait()
                raise self.error(errno.ETIMEDOUT, "no answer")
            case _:
                pass

    def error(self, number: int, text: str) -> OSError:
        """What the caller sees."""
        return OSError(number, f"{text} (injected: {self.id})", self.what)

    def flipped(self, data: bytes | memoryview) -> bytes:
        """`data` with one bit of it turned; which one is drawn from the seed."""
        changed = bytearray(data)
        bit = int(share(self.seed, f"bit of {self.rule.words}", self.number) * len(changed) * 8)
        if changed:
            changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    def _wait(self) -> None:
        threading.Event().wait(self.rule.seconds)
        self.lift(self.id)


class Spoiler:
    """What this process does to its calls."""

    def __init__(self, run_dir: RunDir, run_id: str, tape: Tape) -> None:
        self.tape = tape
        self._run_dir, self._run_id = run_dir, run_id
        self._counts = Counts(run_dir.storage_faults)

    def hits(self, operation: Operation, name: str) -> list[Hit]:
        """Count a call; how it is spoilt, which is in the log by now."""
        return list(self._hits(operation, name))

    def _hits(self, operation: Operation, name: str) -> Iterator[Hit]:
        for place, rule in enumerate(self.tape.storage):
            if not rule.is_about(operation, name):
                continue
            with self._counts.of(place) as count:
                count.calls += 1
                if not rule.is_due(self.tape.seed, count.calls, count.acted):
                    continue
                hit = self._hit(place, rule, f"{operation} {name}")
                if rule.kind is not Kind.ENOSPC:
                    hit = self._acted(hit, count)
            yield hit

    def _hit(self, place: int, rule: Rule, what: str) -> Hit:
        """One that has not acted."""

        def take(wanted: int) -> tuple[int, Hit | None]:
            with self._counts.of(place) as count:
                if rule.is_spent(count.acted):  # by another file that was open at the same time
                    return wanted, None
                room = max(0, min(wanted, rule.after_bytes - count.taken_bytes))
                count.taken_bytes += room
                return room, self._acted(hit, count) if room < wanted else None

        def lift(id_: str) -> None:
            with self._counts.of(place):
                self._log(FaultLifted(id_))

        hit = Hit(rule, place, 0, self.tape.seed, what, lift, take)
        return hit

    def _acted(self, hit: Hit, count: Count) -> Hit:
        """`hit` with its number, counted and in the log."""
        count.acted += 1
        hit = replace(hit, number=count.acted)
        self._log(FaultInjected(hit.id, f"store.{hit.rule.kind}", f"store {hit.what}"))
        return hit

    def _log(self, event: Event) -> None:
        """Under the lock of the counts, so that all processes share one file."""
        attempt = int(os.environ.get("HARNESS_ATTEMPT", "0"))
        with Recorder(self._run_dir, self._run_id, WRITER, attempt) as recorder:
            recorder.write(event)


def armed_spoiler() -> Spoiler:
    """What spoils the calls of the run that this process belongs to.

    Raises `PermissionError` if it belongs to none that is armed, and `OSError` if its tape is none.
    """
    named = os.environ.get("HARNESS_RUN_DIR")
    if not named:
        raise PermissionError(
            f"chaos:: spoils the storage of an armed run, and HARNESS_RUN_DIR names none: {WAY_OUT}"
        )
    run_dir = RunDir.at(named)
    record = settings.read(run_dir.settings)
    if record is None or not record.armed:
        raise PermissionError(
            f"chaos:: spoils the storage of an armed run, and {run_dir.path} is not armed: {WAY_OUT}"
        )
    return Spoiler(run_dir, record.run_id, _tape(run_dir.tape))


def _tape(path: Path) -> Tape:
    try:
        return tapefile.read(path)
    except FileNotFoundError:
        raise PermissionError(f"chaos:: needs a plan, and there is no {path}: {WAY_OUT}") from None
    except ValueError as error:
        raise OSError(errno.EINVAL, f"chaos:: cannot read its plan: {error}") from error
