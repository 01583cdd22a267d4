"""Arms points of a process from its environment, so that it dies or stops as it gets to one of them.

    HARNESS_POINTS="rank-1:save.shard:2=kill;fork-server:fork:1=stop"

That is: who, the point, the how-manieth time that this process reaches it, and what happens then. It
happens in an armed run alone, and once in the run: whoever comes after goes past the same point.
"""

import os
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import count

from harness import settings
from harness.events import FaultInjected
from harness.points import Point, arm, disarm
from harness.recorder import Recorder
from harness.rundir import RunDir

VARIABLE = "HARNESS_POINTS"
WRITER = "points"
_WHO = re.compile(r"rank-\d{1,7}|saver|launcher|fork-server")


class Action(StrEnum):
    """What happens to the process."""

    KILL = "kill"
    STOP = "stop"

    @property
    def signal(self) -> signal.Signals:
        """What the process sends itself."""
        return signal.SIGKILL if self is Action.KILL else signal.SIGSTOP


@dataclass(frozen=True, slots=True)
class Hit:
    """What happens to whom, where and when."""

    who: str
    point: Point
    nth: int
    action: Action

    @property
    def id(self) -> str:
        """Its name in the log and in the run directory."""
        return f"{self.who}:{self.point}:{self.nth}"


def parse(text: str) -> tuple[Hit, ...]:
    """The hits that `text` asks for. Raises `ValueError` with a line for every mistake in it."""
    hits: list[Hit] = []
    mistakes: list[str] = []
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        try:
            hits.append(_hit(entry))
        except ValueError as error:
            mistakes.append(f"{VARIABLE}: {entry!r}: {error}")
    if mistakes:
        raise ValueError("\n".join(mistakes))
    return tuple(hits)


def arm_from(environ: Mapping[str, str], who: str, run_dir: RunDir | None = None) -> None:
    """Arm this process, which is `who`, as `environ` asks; what was armed before is forgotten.

    The run is that of `run_dir`, or of `HARNESS_RUN_DIR`. Raises `ValueError` for a mistake, and for
    a run that is not armed.
    """
    if not environ.get(VARIABLE):
        return
    hits = parse(environ[VARIABLE])
    found = run_dir or RunDir.at(environ.get("HARNESS_RUN_DIR", ""))
    record = settings.read(found.settings)
    if record is None or not record.armed:
        raise ValueError(
            f"{VARIABLE} is set and {found.path} is not armed, so nothing may be broken in it:"
            " unset it, or arm the run by --faults PLAN or --tape FILE"
        )
    disarm()
    mine = [hit for hit in hits if hit.who == who and not found.hit(hit.id).exists()]
    for point in {hit.point for hit in mine}:
        arm(point, _counting(found, record.run_id, [hit for hit in mine if hit.point is point]))


def _hit(entry: str) -> Hit:
    head, found, action = entry.partition("=")
    who, point, nth = (*head.split(":"), "", "")[:3]
    mistakes = []
    if not found or head.count(":") != 2:
        mistakes.append("must read WHO:POINT:NTH=ACTION")
    if not _WHO.fullmatch(who):
        mistakes.append(f"unknown process {who!r}; known: fork-server, launcher, rank-N, saver")
    if point not in list(Point):
        mistakes.append(f"unknown point {point!r}; known: {', '.join(sorted(Point))}")
    if not nth.isdecimal() or int(nth) < 1:
        mistakes.append(f"{nth!r} is not a count from 1 up")
    if action not in list(Action):
        mistakes.append(f"unknown action {action!r}; known: {', '.join(sorted(Action))}")
    if mistakes:
        raise ValueError("; ".join(mistakes))
    return Hit(who, Point(point), int(nth), Action(action))


def _counting(run_dir: RunDir, run_id: str, hits: Iterable[Hit]) -> Callable[[], None]:
    """Counts how often the point is reached, and does what falls due."""
    counts = count(1)
    due = {hit.nth: hit for hit in hits}

    def reached() -> None:
        hit = due.get(next(counts))
        if hit is not None and _is_first(run_dir, hit):
            _act(run_dir, run_id, hit)

    return reached


def _is_first(run_dir: RunDir, hit: Hit) -> bool:
    """Mark it as done; False if it was."""
    path = run_dir.hit(hit.id)
    path.parent.mkdir(exist_ok=True)
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _act(run_dir: RunDir, run_id: str, hit: Hit) -> None:
    attempt = int(os.environ.get("HARNESS_ATTEMPT", "0"))
    with Recorder(run_dir, run_id, WRITER, attempt) as recorder:
        target = hit.who.replace("rank-", "rank ")
        recorder.write(FaultInjected(hit.id, f"point.{hit.action}", target))
    os.kill(os.getpid(), hit.action.signal)
