"""A rank that dies costs one attempt: the rest of it dies at once, and the next one starts."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest

from harness.events import (
    AttemptStarted,
    Cause,
    FailureDetected,
    HelperRestarted,
    Outcome,
    RanksSpawned,
    RunFinished,
)
from launch.orders import Order, Request
from launch.rank import Kind, Program
from launch.spawner import Spawner
from tests.launch.conftest import Bench, dead
from tests.waiting import until

pytestmark = pytest.mark.processes
FOR_EVER = "100000"


@pytest.mark.parametrize(("ranks", "kills"), [(2, 4), (4, 4)])
def test_each_kill_costs_exactly_one_attempt(bench: Bench, ranks: int, kills: int):
    run = bench.launch("--max-restarts", "50", "reduce.py", FOR_EVER, ranks=ranks)
    for attempt in range(1, kills + 1):
        victim = attempt % ranks
        os.kill(bench.pids(attempt, ranks)[victim], signal.SIGKILL)
    bench.pids(kills + 1, ranks)
    run.signal(signal.SIGINT)
    assert run.wait() == 130
    assert bench.attempts() == list(range(1, kills + 2))
    assert bench.events(FailureDetected) == [
        FailureDetected(attempt % ranks, Cause.SIGNAL, "killed by SIGKILL")
        for attempt in range(1, kills + 1)
    ]
    assert bench.events(AttemptStarted) == [AttemptStarted(ranks)] * (kills + 1)
    assert bench.events(RanksSpawned) == [RanksSpawned(ranks, warm=True)] * (kills + 1)


def test_survivors_die_at_once_even_if_they_ignore_sigterm(bench: Bench):
    script = bench.write(
        "deaf.py",
        "import json, os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(json.dumps({'pid': os.getpid()}))\n"
        "time.sleep(1000 if os.environ['HARNESS_ATTEMPT'] == '1' else 0)\n",
    )
    run = bench.launch(script, ranks=2)
    pids = bench.pids(1, 2)
    os.kill(pids[0], signal.SIGKILL)
    assert run.wait(20) == 0
    assert dead(pids)


def test_a_stopped_survivor_dies_too(bench: Bench):
    run = bench.launch("reduce.py", FOR_EVER, ranks=3)
    pids = bench.pids(1, 3)
    os.kill(pids[0], signal.SIGSTOP)
    os.kill(pids[1], signal.SIGKILL)
    bench.pids(2, 3)
    assert dead(pids)
    run.signal(signal.SIGINT)
    run.wait()


def test_children_of_a_killed_rank_die_with_its_attempt(bench: Bench):
    script = bench.write(
        "parent.py",
        "import json, os, subprocess, time\n"
        "if os.environ['HARNESS_ATTEMPT'] == '1':\n"
        "    child = subprocess.Popen(['sleep', '1000'])\n"
        "    daemon = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "    print(json.dumps({'pid': os.getpid(), 'children': [child.pid, daemon.pid]}))\n"
        "    time.sleep(1000)\n",
    )
    run = bench.launch(script, ranks=2)
    told = [bench.told(1, rank) for rank in range(2)]
    os.kill(told[0]["pid"], signal.SIGKILL)
    assert run.wait(20) == 0
    assert dead([child for rank in told for child in rank["children"]])


def test_shared_memory_that_a_killed_rank_had_by_name_is_removed(bench: Bench):
    # As loader workers that are spawned need it; a forked one's has no name.
    script = bench.write(
        "named.py",
        "import json, multiprocessing, os, time\n"
        "if os.environ['HARNESS_ATTEMPT'] == '1':\n"
        "    semaphore = multiprocessing.get_context('spawn').Semaphore()\n"
        "    print(json.dumps({'pid': os.getpid(), 'name': semaphore._semlock.name}))\n"
        "    time.sleep(1000)\n",
    )
    run = bench.launch(script, ranks=2)
    told = [bench.told(1, rank) for rank in range(2)]
    named = [Path("/dev/shm") / f"sem.{rank['name'].removeprefix('/')}" for rank in told]
    assert all(path.exists() for path in named)
    os.kill(told[0]["pid"], signal.SIGKILL)
    assert run.wait(20) == 0
    assert not any(path.exists() for path in named)


def test_stacks_of_the_survivors_say_what_they_were_doing(bench: Bench):
    script = bench.write(
        "sleepy.py",
        "import json, os, time\n"
        "def sleep_on():\n"
        "    time.sleep(1000 if os.environ['HARNESS_ATTEMPT'] == '1' else 0)\n"
        "print(json.dumps({'pid': os.getpid()}))\n"
        "sleep_on()\n",
    )
    run = bench.launch(script, ranks=2)
    os.kill(bench.pids(1, 2)[0], signal.SIGKILL)
    assert run.wait() == 0
    assert "in sleep_on" in bench.run_dir.stacks(1, 1).read_text()
    assert '"status": -9' in bench.run_dir.exits(1).read_text()
    assert not bench.run_dir.stacks(1, 0).exists()
    assert not bench.run_dir.incident(2).exists()


def test_a_launcher_that_is_killed_leaves_nothing(bench: Bench):
    script = bench.write(
        "busy.py",
        "import json, os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "print(json.dumps({'pid': os.getpid()}))\n"
        "time.sleep(1000)\n",
    )
    run = bench.launch(script, ranks=2)
    stopped, _ = bench.pids(1, 2)
    os.kill(stopped, signal.SIGSTOP)
    assert len(bench.zygote.below()) == 7  # launcher, saver, fork server, ranks and their children
    run.signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    until(lambda: not bench.zygote.below(), "all that the launcher started is gone", 5.0)


def test_a_stopped_fork_server_dies_with_its_launcher(bench: Bench):
    run = bench.launch("reduce.py", FOR_EVER, ranks=2)
    bench.pids(1, 2)
    os.kill(_fork_server(run.pid), signal.SIGSTOP)
    run.signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    until(lambda: not bench.zygote.below(), "all that the launcher started is gone", 5.0)


def test_a_fork_server_that_is_stopped_is_told_to_go_on(bench: Bench):
    script = bench.write(
        "s.py",
        "import json, os, time\n"
        "print(json.dumps({'pid': os.getpid()}))\n"
        "time.sleep(1000 if os.environ['HARNESS_ATTEMPT'] == '1' else 0)\n",
    )
    run = bench.launch(script, ranks=2)
    first, _ = bench.pids(1, 2)
    os.kill(_fork_server(run.pid), signal.SIGSTOP)
    os.kill(first, signal.SIGKILL)
    assert run.wait() == 0
    assert [failure.cause for failure in bench.events(FailureDetected)] == [Cause.SIGNAL]


def test_ranks_die_with_their_fork_server_though_the_launcher_sleeps(bench: Bench):
    run = bench.launch("reduce.py", FOR_EVER, ranks=2)
    pids = bench.pids(1, 2)
    fork_server = _fork_server(run.pid)
    run.signal(signal.SIGSTOP)
    os.kill(fork_server, signal.SIGKILL)
    until(lambda: dead(pids), "the ranks are dead", 5.0)
    run.signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL


def test_a_fork_server_that_dies_costs_an_attempt_and_the_next_is_warm_again(bench: Bench):
    script = bench.write(
        "parent.py",
        "import json, os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "print(json.dumps({'pid': os.getpid(), 'child': child.pid}))\n"
        "time.sleep(1000 if os.environ['HARNESS_ATTEMPT'] == '1' else 0)\n",
    )
    run = bench.launch(script, ranks=2)
    told = [bench.told(1, rank) for rank in range(2)]
    os.kill(_fork_server(run.pid), signal.SIGKILL)
    assert run.wait() == 0
    assert dead([rank["child"] for rank in told])
    reason = "the fork server died, and every rank with it"
    assert bench.events(FailureDetected) == [FailureDetected(None, Cause.HELPER, reason)]
    assert bench.events(RanksSpawned) == [
        RanksSpawned(2, warm=True),
        RanksSpawned(2, warm=True),
    ]
    assert bench.events(HelperRestarted) == [HelperRestarted("fork server", "SIGKILL")]
    assert bench.events(RunFinished) == [RunFinished(Outcome.FINISHED)]


def test_a_launcher_does_not_wait_for_ever_for_what_a_dead_fork_server_left(bench: Bench):
    bench.write("brief.py", "from launch import agent\nagent.STOP_TIMEOUT_S = 1.0\n")
    script = bench.write(
        "s.py",
        "import json, os, time\nprint(json.dumps({'pid': os.getpid()}))\ntime.sleep(1000)\n",
    )
    run = bench.launch("--preload", "brief", script)
    (rank,) = bench.pids(1, 1)
    with undead(rank):
        os.kill(_fork_server(run.pid), signal.SIGKILL)
        assert run.wait(30) == 1
    (finished,) = bench.events(RunFinished)
    assert finished.outcome is Outcome.FAILED
    assert finished.reason.startswith(
        f"processes of attempt 1 ({rank}) did not die within 1 s of SIGKILL: "
    )
    assert bench.attempts() == [1]


CLOSES = """\
from launch import processes
from launch.rank import Kind, Program
from launch.spawner import Spawner
processes.KILL_TIMEOUT_S = 0.1
server = Spawner.execute(Program(Kind.SCRIPT, "s.py"), "for a test")
print(server.pid, flush=True)
input()
print(server.close())
"""


def test_a_fork_server_that_does_not_die_is_not_waited_for_for_ever():
    command = [sys.executable, "-c", CLOSES]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as closing_it:
        assert closing_it.stdout is not None
        with undead(int(closing_it.stdout.readline())):
            said, _ = closing_it.communicate("go\n", timeout=60)
    assert (said, closing_it.returncode) == ("None\n", 0)


WAITS_IN_THE_FIRST = """\
import json, os, time
print(json.dumps({}))
time.sleep(1000 if os.environ["HARNESS_ATTEMPT"] == "1" else 0)
"""
IMPORTS_HANG = """\
import os, sys, time
if "launch.forkserver" in sys.orig_argv and os.path.exists("hang"):
    os.remove("hang")
    time.sleep(1000)
"""


def test_a_new_fork_server_whose_imports_hang_is_given_up_and_costs_an_attempt(bench: Bench):
    bench.write("sitecustomize.py", IMPORTS_HANG)
    script = bench.write("s.py", WAITS_IN_THE_FIRST)
    environment = {"PYTHONPATH": str(bench.folder)}
    run = bench.launch("--cold", "--startup-limit", "6", script, environment=environment)
    bench.told()
    (bench.folder / "hang").touch()
    os.kill(_fork_server(run.pid), signal.SIGKILL)
    assert run.wait() == 0, run.printed
    assert bench.events(FailureDetected) == [
        FailureDetected(None, Cause.HELPER, "the fork server died, and every rank with it"),
        FailureDetected(
            None,
            Cause.HELPER,
            "a fork server was killed: what it was to import did not come back within 6 s"
            " (--startup-limit)",
        ),
    ]
    assert bench.events(HelperRestarted) == [HelperRestarted("fork server", "SIGKILL")] * 2
    assert len(bench.events(AttemptStarted)) == 3


def test_a_new_fork_server_that_dies_of_its_imports_costs_an_attempt(bench: Bench):
    bench.write("sitecustomize.py", IMPORTS_HANG.replace("time.sleep(1000)", "os._exit(3)"))
    script = bench.write("s.py", WAITS_IN_THE_FIRST)
    run = bench.launch("--cold", script, environment={"PYTHONPATH": str(bench.folder)})
    bench.told()
    (bench.folder / "hang").touch()
    os.kill(_fork_server(run.pid), signal.SIGKILL)
    assert run.wait() == 0, run.printed
    died = FailureDetected(None, Cause.HELPER, "the fork server died, and every rank with it")
    assert bench.events(FailureDetected) == [died, died]
    assert bench.events(HelperRestarted) == [
        HelperRestarted("fork server", "SIGKILL"),
        HelperRestarted("fork server", "exit code 3"),
    ]


def test_a_fork_server_that_hangs_in_a_fork_is_given_up_and_the_reason_is_told(bench: Bench):
    bench.write(
        "hung.py",
        "import time\n"
        "from harness.points import Point, arm\n"
        "forks = []\n"
        "def fork():\n"
        "    forks.append(1)\n"
        "    time.sleep(1000 if len(forks) == 2 else 0)\n"
        "arm(Point.FORK, fork)\n",
    )
    script = bench.write("s.py", "import time\ntime.sleep(1000)\n")
    run = bench.launch("--preload", "hung", "--startup-limit", "2", script, ranks=2)
    (failure,) = until(lambda: bench.events(FailureDetected), "it is given up")
    assert failure == FailureDetected(
        None,
        Cause.HELPER,
        "the fork server was killed: it had started no rank for more than 2 s (--startup-limit)",
    )
    run.signal(signal.SIGINT)
    assert run.wait(30) == 130


def test_a_new_fork_server_has_imported_what_the_first_had_and_forks_again_and_again(bench: Bench):
    bench.write("slow.py", "import os\npid = os.getpid()\n")
    bench.write("beside.py", "")
    script = bench.write(
        "s.py",
        "import json, os, slow, sys, time, beside\n"
        "print(json.dumps({'own': slow.pid == os.getpid(), 'server': slow.pid == os.getppid()}))\n"
        "time.sleep(1000 if os.environ['HARNESS_ATTEMPT'] == '1' else 0)\n"
        "sys.exit(os.environ['HARNESS_ATTEMPT'] == '2')\n",
    )
    run = bench.launch("--preload", "slow", script)
    bench.told()
    os.kill(_fork_server(run.pid), signal.SIGKILL)
    assert run.wait() == 0
    told = [bench.told(attempt) for attempt in (2, 3)]
    assert told == [{"own": False, "server": True}] * 2


def test_a_new_fork_server_that_is_stopped_while_it_imports_is_told_to_go_on(bench: Bench):
    script = bench.write(
        "s.py",
        "import json, os, time\n"
        "print(json.dumps({}))\n"
        "time.sleep(1000 if os.environ['HARNESS_ATTEMPT'] == '1' else 0)\n",
    )
    run = bench.launch(script)
    bench.told()
    os.kill(_fork_server(run.pid), signal.SIGKILL)
    again = until(lambda: _importing(run.pid), "another one imports")
    os.kill(again, signal.SIGSTOP)
    assert run.wait() == 0, run.printed


def test_a_rank_that_the_machine_has_no_process_for_costs_an_attempt_and_the_reason_is_told(
    bench: Bench,
):
    bench.write(
        "full.py",
        "import errno, os\n"
        "from harness.points import Point, arm\n"
        "forks = []\n"
        "def fork():\n"
        "    forks.append(1)\n"
        "    if len(forks) == 2:\n"
        "        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n"
        "arm(Point.FORK, fork)\n",
    )
    script = bench.write(
        "s.py",
        "import os, time\ntime.sleep(1000 if os.environ['HARNESS_ATTEMPT'] == '1' else 0)\n",
    )
    run = bench.launch("--preload", "full", script, ranks=3)
    assert run.wait() == 0, run.printed
    assert bench.events(FailureDetected) == [
        FailureDetected(
            None,
            Cause.HELPER,
            "rank-1 cannot be started: [Errno 11] Resource temporarily unavailable: the limit of"
            " processes (`ulimit -u`, or pids.max of the container) or memory may be used up",
        )
    ]
    assert bench.events(HelperRestarted) == []
    assert len(bench.events(AttemptStarted)) == 2


_SEIZE = 0x4206
_EVEN_CLONES = 0x40000000


@contextmanager
def undead(pid: int) -> Iterator[None]:
    """While inside, a killed `pid` is there for its parent as one is that a device holds: this traces it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(_SEIZE, pid, None, None) != 0:
        pytest.skip(f"no process may be traced here: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, _EVEN_CLONES)


class StoppedAtOnce(Spawner):
    """Its fork server is stopped just before it would hear what it is told."""

    def _send(self, request: Request) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        super()._send(request)


def test_a_fork_server_that_is_stopped_as_it_is_to_kill_does_so_all_the_same(tmp_path: Path):
    (tmp_path / "s.py").write_text("import time\ntime.sleep(1000)\n")
    server = StoppedAtOnce.execute(Program(Kind.SCRIPT, str(tmp_path / "s.py")), "for a test")
    with closing(server):
        server.start([Order("sleeper", {}, "/", os.devnull, os.devnull, os.devnull)])
        ended = server.stop(30.0)
    assert ended is not None
    assert [(it.name, it.status) for it in ended] == [("sleeper", -signal.SIGKILL)]


def _importing(launcher: int) -> int | None:
    for child in psutil.Process(launcher).children():
        with suppress(psutil.NoSuchProcess):
            if "launch.forkserver" in child.cmdline():
                return child.pid
    return None


def _fork_server(launcher: int) -> int:
    children = psutil.Process(launcher).children()
    return next(child.pid for child in children if child.name() == "fork-server")
