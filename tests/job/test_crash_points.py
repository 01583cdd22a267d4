"""A run that is killed at any point goes on from the newest state there is, and leaves nothing over.

One line per point. Each is a whole job that is hit there once, launched again where that took its
launcher, and compared with the twin that nobody hit: step by step, from the step that it resumed at.
"""

import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from fsspec.core import url_to_fs

from faultinject import tapefile
from faultinject.tape import Tape
from harness import settings
from harness.checkpoint.store import Store
from harness.events import (
    FaultInjected,
    RestoreStarted,
    SaveCommitted,
    StateDigested,
    Tier,
    TrainingResumed,
)
from harness.rundir import RunDir
from harness.verify import verify
from tests.job.conftest import STEPS, Job
from tests.waiting import until

pytestmark = pytest.mark.processes
RANKS = 2
LAUNCHES = 3
"""More than a killed launcher can cost."""


@dataclass(frozen=True, slots=True)
class Case:
    """Where a run is hit."""

    name: str
    points: str
    """As in `HARNESS_POINTS`; of two with a `|` between them either will do."""
    outside: Callable[["Outside"], None] | None = None
    """What is done to it from outside once one of the points has stopped it."""


class Outside:
    """The processes of a run, for those who kill several at once."""

    def __init__(self, job: Job, launcher: int) -> None:
        self.launcher = psutil.Process(launcher)
        self.job = job

    def kill(self, *names: str) -> None:
        """SIGKILL to each process of these names below the launcher, one right after the other."""
        below = [self.launcher, *self.launcher.children(recursive=True)]
        victims = [
            process
            for process in below
            if _name(process) in names or ("launcher" in names and process == self.launcher)
        ]
        assert victims, f"none of {names} among {[_name(process) for process in below]}"
        for process in victims:
            process.kill()


def _name(process: psutil.Process) -> str:
    """`rank-0`, `fork-server`, `saver`, `launcher`, as far as one can see that."""
    try:
        command = " ".join(process.cmdline())
        return "saver" if "harness.checkpoint.saver" in command else process.name()
    except psutil.Error:
        return ""


def _kill(*names: str) -> Callable[[Outside], None]:
    return lambda run: run.kill(*names)


def _kill_launcher(run: Outside) -> None:
    run.launcher.kill()


def _saver(name: str, point: str, nth: int) -> list[Case]:
    """The saver dies there, and a rank some time later; or every process of the job dies there."""
    alone = f"saver:{point}:{nth}=kill;rank-0:step.start:20=kill"
    everyone = _kill("saver", "rank-0", "rank-1")
    return [
        Case(name, alone),
        Case(f"{name}, with all ranks", f"saver:{point}:{nth}=stop", everyone),
    ]


AFTER_SOME_SAVES = "rank-0:step.start:14=stop"
READS = "rank-0:restore.read:2=kill|rank-1:restore.read:2=kill"
CASES = [
    Case("before the first commit", "rank-0:step.end:1=kill"),
    Case("in the middle of a copy", "rank-1:save.copy:2=kill"),
    *_saver("in the middle of a shard", "save.shard", 3),
    *_saver("between two shards", "save.between", 3),
    *_saver("between the last shard and the manifest", "save.manifest", 2),
    *_saver("between the manifest and the commit", "save.commit", 2),
    *_saver("as retention begins", "retention", 2),
    *(_saver(f"after deletion {n} of retention", "retention", 2 + n)[n % 2] for n in range(1, 6)),
    Case("as a first state is looked for", "rank-0:step.start:14=kill;rank-1:restore:1=kill"),
    Case("in the middle of a file that is read", f"rank-0:step.start:14=kill;{READS}"),
    Case("between two forks", "rank-0:step.start:14=kill;fork-server:fork:4=kill"),
    Case("right after the fork", "rank-1:step.start:14=kill;rank-1:forked:1=kill"),
    Case("as the group forms", "rank-0:step.start:14=kill;rank-1:group:1=kill"),
    Case("two ranks at once", AFTER_SOME_SAVES, _kill("rank-0", "rank-1")),
    Case("all ranks and the saver", AFTER_SOME_SAVES, _kill("rank-0", "rank-1", "saver")),
    Case("the launcher, between attempts", "rank-0:step.start:14=kill;launcher:attempt:2=kill"),
    Case("the launcher, while it trains", AFTER_SOME_SAVES, _kill_launcher),
    Case("the fork server", AFTER_SOME_SAVES, _kill("fork-server")),
]


LATE = "rank-0:step.start:14=stop"
EVERYONE = ("rank-0", "rank-1", "saver")
IN_MEMORY: list[tuple[Case, Tier | None, tuple[int, ...]]] = [
    (Case("in the middle of a copy to memory", "rank-1:save.copy:4=kill"), Tier.MEMORY, (8,)),
    (Case("between a copy and its label", "rank-0:save.label:4=kill"), Tier.MEMORY, (8,)),
    (
        Case("in the middle of all copies", "rank-0:save.copy:4=stop", _kill("rank-0", "rank-1")),
        Tier.MEMORY,
        (8,),
    ),
    (Case("in both tiers at once", "saver:save.shard:1=stop", _kill(*EVERYONE)), None, (0,)),
    (Case("the launcher, with copies in memory", LATE, _kill_launcher), Tier.MEMORY, (9, 12)),
    (Case("the launcher and the saver", LATE, _kill("launcher", "saver")), Tier.STORAGE, (8,)),
]
"""Where a run goes on from that copies every 3 steps, and saves to the storage every 8."""
FROM_MEMORY = ("--memory-every", "3 steps", "--save-every-steps", "8")
FROM_STORAGE = ("--memory-every", "off")


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a case."""

    point: str
    store: str
    launches: int
    chosen: tuple[tuple[int, int], ...]
    """Of each start but the first: the step that it resumed from, and the newest known committed."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Where checkpoints go."""

    kind: str
    url: str
    environ: Mapping[str, str]
    """What a process needs to reach it."""

    def left_over(self, run_id: str) -> list[str]:
        """Hidden files, uploads that were not completed, and saves that nobody committed."""
        store = Store.open(self.url, run_id)
        left = [place.name for place in store.places() if not store.is_committed(place)]
        if self.kind == "file":
            return left + [str(path) for path in Path(self.url).rglob(".*")]
        s3 = url_to_fs(self.url)[0]
        bucket, prefix = self.url.removeprefix("s3://").split("/", 1)
        pages = s3.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix)
        return left + [upload["Key"] for upload in pages.get("Uploads", ())]


@pytest.fixture(params=["file", "s3"])
def storage(request: pytest.FixtureRequest, job: Job) -> Storage:
    """A storage of this kind with nothing in it."""
    if request.param == "file":
        return Storage("file", str(job.folder / "checkpoints"), {})
    url = request.getfixturevalue("s3_url")
    found: Mapping[str, str] = request.getfixturevalue("moto").environ
    # As botocore reads them. The warm process has read fsspec's variables before there was a server.
    environ = {
        "AWS_ENDPOINT_URL": found["FSSPEC_S3_ENDPOINT_URL"],
        "AWS_ACCESS_KEY_ID": found["FSSPEC_S3_KEY"],
        "AWS_SECRET_ACCESS_KEY": found["FSSPEC_S3_SECRET"],
    }
    return Storage("s3", url, environ)


@pytest.fixture(scope="module")
def table() -> Iterator[list[Row]]:
    """Printed after the last case, for `-s`."""
    rows: list[Row] = []
    yield rows
    print(f"\n{'point':<56} {'store':<5} {'launches':>8}  resumed (newest known)")
    for row in rows:
        chosen = ", ".join(f"{resumed} ({newest})" for resumed, newest in row.chosen)
        print(f"{row.point:<56} {row.store:<5} {row.launches:>8}  {chosen}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_a_run_that_is_hit_there_ends_as_its_twin(case, storage, job, twin, table):
    launches = _lead(case, storage, job, FROM_STORAGE)
    table.append(Row(case.name, storage.kind, launches, _chosen(job)))
    _check(case, storage, job, twin)
    # What was committed in a process' last moment is not in the log, and is there all the same.
    assert all(resumed >= newest for resumed, newest in _chosen(job)), table[-1]


@pytest.mark.parametrize(
    ("case", "tier", "steps"), IN_MEMORY, ids=[it[0].name.replace(" ", "-") for it in IN_MEMORY]
)
def test_a_run_with_copies_in_memory_ends_as_its_twin(case, tier, steps, job, twin, table):
    storage = Storage("file", str(job.folder / "checkpoints"), {})
    launches = _lead(case, storage, job, FROM_MEMORY)
    table.append(Row(case.name, "file", launches, _chosen(job)))
    _check(case, storage, job, twin)
    resumed = [e.event for e in job.entries() if isinstance(e.event, TrainingResumed)]
    assert (len(resumed), resumed[1].tier) == (2, tier), resumed
    assert resumed[1].step in steps


def _check(case: Case, storage: Storage, job: Job, twin: Callable[[int], Path]) -> None:
    """All that holds wherever a run was hit."""
    hits = _hits(job)
    for asked in case.points.split(";"):
        assert any(one.split("=")[0] in hits for one in asked.split("|")), f"{asked}: not reached"
    assert _resumed_otherwise(job, twin(RANKS)) == []
    verdict = verify(job.path, twin(RANKS))
    assert (verdict.exact, verdict.compared_steps) == (True, STEPS), verdict.detail
    record = settings.read(RunDir.at(job.path).settings)
    assert record is not None
    assert storage.left_over(record.run_id) == []
    # The lock on run.toml has nothing in it and stays.
    assert {path.name for path in job.path.rglob(".*")} <= {".run.toml.lock"}


def _lead(case: Case, storage: Storage, job: Job, intervals: tuple[str, ...]) -> int:
    """Launch the job until it has finished; how many launches that took."""
    tape = job.folder / "tape"
    tapefile.write(tape, Tape(0, "no faults in time", RANKS, ()))
    for launches in range(1, LAUNCHES + 1):
        flags = ("--tape", str(tape), "--checkpoints", storage.url, "--keep", "1", *intervals)
        points = case.points.replace("|", ";")
        environ = {"HARNESS_POINTS": points, **storage.environ}
        launched = job.start(RANKS, *flags, script=(), **environ)
        if case.outside is not None and launches == 1:
            until(lambda: _hits(job), f"{case.points} is reached", 60.0)
            case.outside(Outside(job, launched.pid))
        status = launched.wait(120)
        if status == 0:
            return launches
        assert status == -signal.SIGKILL, launched.printed
        # A saver may hold what is in memory for the next launch.
        until(
            lambda: {_name(process) for process in job.zygote.below()} <= {"saver", ""},
            "what the launcher started is gone",
        )
    raise AssertionError(f"not finished after {LAUNCHES} launches")


def _hits(job: Job) -> list[str]:
    """What was hit so far."""
    return [entry.event.id for entry in job.entries() if isinstance(entry.event, FaultInjected)]


def _chosen(job: Job) -> tuple[tuple[int, int], ...]:
    """See `Row.chosen`."""
    found: list[tuple[int, int]] = []
    newest, newest_then = 0, {}
    for entry in job.entries():
        match entry.event:
            case SaveCommitted(step=step):
                newest = max(newest, step)
            case RestoreStarted():
                newest_then[entry.attempt] = newest
            case TrainingResumed(step=step):
                found.append((step, newest_then[entry.attempt]))
    return tuple(found[1:]) if found[:1] == [(0, 0)] else tuple(found)


def _resumed_otherwise(job: Job, twin: Path) -> list[tuple[int, str]]:
    """Steps that were resumed from in a state which the twin had not at that step, and the writer."""
    truth = {
        (entry.event.step, entry.writer): dict(entry.event.components)
        for entry in Job(job.zygote, twin.parent, job.text).entries()
        if isinstance(entry.event, StateDigested)
    }
    resumed = {
        e.attempt: e.event.step for e in job.entries() if isinstance(e.event, TrainingResumed)
    }
    return [
        (entry.event.step, entry.writer)
        for entry in job.entries()
        if isinstance(entry.event, StateDigested)
        and entry.event.step == resumed.get(entry.attempt)
        and not dict(entry.event.components).items()
        <= truth[entry.event.step, entry.writer].items()
    ]
