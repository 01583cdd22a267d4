"""What stands beside a job: other jobs, an exporter, an injector; and what a launcher prints."""

import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from harness.events import (
    DrainRequested,
    FailureDetected,
    FaultConfirmed,
    FaultInjected,
    HelperRestarted,
    Outcome,
    RanksSpawned,
    RunFinished,
    SaveCommitted,
    StepFinished,
    TrainingResumed,
)
from harness.journal import read
from harness.recorder import Recorder
from harness.report import report
from harness.report.terminal import rendered
from harness.rundir import RunDir
from launch.beside import Beside, Recipe
from launch.environment import Place, Shared, environment
from launch.processes import STOPPED, has_handler, state
from launch.watch import Watch
from tests.launch.conftest import Bench
from tests.waiting import until

PLAN = """
schema = 1
max_faults = 1

[arrival]
instants = [0.0]

[[faults]]
kind = "kill"
target = "rank 1"
"""


@pytest.mark.processes
def test_two_runs_and_a_foreigner_on_torchrun_s_port_do_not_meet(bench: Bench):
    script = bench.write(
        "s.py",
        "import json, os, sys, torch\n"
        "from torch import distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "total = torch.ones(1) * int(sys.argv[1])\n"
        "dist.all_reduce(total)\n"
        "print(json.dumps([total.item(), os.environ['MASTER_PORT']]))\n"
        "dist.destroy_process_group()\n",
    )
    with socket.socket() as foreigner:
        foreigner.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        foreigner.bind(("127.0.0.1", 29500))
        foreigner.listen()
        one = bench.launch(script, "1", ranks=2, run="one")
        ten = bench.launch(script, "10", ranks=2, run="ten")
        assert (one.wait(), ten.wait()) == (0, 0)
    told = [
        (bench.folder / run / "logs/attempt-1/rank-0.out").read_text() for run in ("one", "ten")
    ]
    assert told[0].startswith("[2.0, ")
    assert told[1].startswith("[20.0, ")
    assert told[0].split()[1] != told[1].split()[1]


@pytest.mark.processes
def test_a_second_launcher_in_one_directory_is_refused_and_does_no_harm(bench: Bench):
    first = bench.launch("reduce.py", "100000", ranks=1)
    bench.told()
    second = bench.launch("reduce.py", "1")
    assert second.wait() == 2
    assert "another launcher is at work in" in second.printed
    assert bench.zygote.runs(first)
    first.signal(signal.SIGINT)
    assert first.wait() == 130


WAITS = """
import json, os, time
print(json.dumps({}))
while not os.path.exists("go"):
    time.sleep(0.01)
"""


@pytest.mark.processes
def test_an_exporter_that_dies_is_started_again_and_training_knows_nothing_of_it(bench: Bench):
    flags = ("run", "--run", "run", "--metrics-port", "0")
    run = bench.zygote.launch([*flags, bench.write("s.py", WAITS)], bench.folder)
    bench.launched.append(run)
    bench.told()
    exporter = until(lambda: _named(run.pid, "export"), "the exporter runs")
    exporter.kill()
    until(lambda: bench.events(HelperRestarted), "it is started again")
    second = until(lambda: _named(run.pid, "export"), "another exporter runs")
    (bench.folder / "go").touch()
    assert run.wait() == 0
    assert second.pid != exporter.pid
    assert bench.events(HelperRestarted) == [HelperRestarted("exporter", "SIGKILL")]
    assert bench.events(RunFinished) == [RunFinished(Outcome.FINISHED)]
    lines = [line for line in run.printed.splitlines() if not line.startswith("metrics at ")]
    assert lines[:3] == [
        f"starting {bench.run_dir.path}, 1 rank",
        "attempt 1: 1 rank started warm",
        "the exporter ended with SIGKILL: started again",
    ]
    assert "finished" in lines
    assert "exporter: started again 1 time, last because of SIGKILL" in rendered(
        report(bench.run_dir), "run"
    )


@pytest.mark.processes
def test_an_injector_that_dies_is_started_again_and_repeats_no_fault(bench: Bench):
    bench.write("plan.toml", PLAN.replace("[0.0]", "[0.0, 0.5]").replace("= 1\n\n[a", "= 2\n\n[a"))
    flags = ("--faults", "plan.toml", "--save-every-steps", "2")
    run = bench.launch(*flags, "steps.py", "9999", ranks=2, environment={"STEP_S": "0.05"})
    until(lambda: len(bench.events(FaultConfirmed)) == 1, "the first fault has struck")
    _named(run.pid, "inject").kill()
    until(lambda: len(bench.events(FaultConfirmed)) == 2, "the second fault strikes")
    until(lambda: len(bench.events(TrainingResumed)) == 3, "training goes on")
    run.signal(signal.SIGTERM)
    assert run.wait() == 75, run.printed
    assert bench.events(HelperRestarted) == [HelperRestarted("injector", "SIGKILL")]
    assert len(bench.events(FaultInjected)) == 2
    assert len(bench.events(FailureDetected)) == 2


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "died_of"),
    [
        (signal.SIGKILL, "SIGKILL"),
        (signal.SIGSTOP, "SIGKILL, after it had been stopped for 10 s"),
    ],
)
def test_a_saver_that_dies_or_stops_is_started_again_and_saves_go_on(
    bench: Bench, number: int, died_of: str
):
    flags = ("--save-every-steps", "2")
    run = bench.launch(*flags, "steps.py", "9999", ranks=2, environment={"STEP_S": "0.05"})
    until(lambda: bench.events(SaveCommitted), "a first save")
    _named(run.pid, "harness.checkpoint.saver").send_signal(number)
    until(lambda: bench.events(HelperRestarted), "it is started again")
    seen = bench.events(StepFinished)[-1].step
    until(lambda: bench.events(SaveCommitted)[-1].step > seen, "a save after that")
    run.signal(signal.SIGTERM)
    assert run.wait() == 75, run.printed
    assert bench.events(HelperRestarted) == [HelperRestarted("saver", died_of)]
    assert bench.events(FailureDetected) == []
    assert bench.events(SaveCommitted)[-1].step == bench.events(StepFinished)[-1].step


def test_a_companion_that_dies_at_once_is_given_up_after_a_few_starts_and_that_is_said_once(
    tmp_path: Path,
):
    said: list[str] = []
    with Watch() as watch, Recorder(RunDir.at(tmp_path), "run-1", "launcher-0") as recorder:
        recipe = Recipe("exporter", ["nosuchmodule"])
        beside = Beside([recipe], tmp_path / "log", watch, recorder, _nobody, said.append)
        beside.start()
        while not beside.has_given_up("exporter"):
            watch.wait(0.1)
            beside.look()
        assert beside.pids() == set()
        assert watch.wait(0) == (set(), [])
    (line,) = said
    assert line.startswith("the exporter ended with exit code 1, and it died 5 times in a row")
    assert line.endswith(f": training goes on without it; see {tmp_path / 'log'}")
    restarts = [entry.event for entry in read(RunDir.at(tmp_path))]
    assert restarts == [HelperRestarted("exporter", "exit code 1")] * 4


def test_a_companion_that_is_stopped_is_ended_after_ten_seconds_on_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now_s = [0.0]
    monkeypatch.setattr("launch.beside.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    said: list[str] = []
    with Watch() as watch, Recorder(RunDir.at(tmp_path), "run-1", "launcher-0") as recorder:
        recipe = Recipe("exporter", ["http.server", "0", "--bind", "127.0.0.1"])
        beside = Beside([recipe], tmp_path / "log", watch, recorder, said.append, pytest.fail)
        beside.start()
        (pid,) = beside.pids()

        def looked(number: int | None, at_s: float) -> bool:
            """Whether it lives after a signal, and a look at that time."""
            if number is not None:
                os.kill(pid, number)
                until(lambda: (state(pid) == STOPPED) is (number == signal.SIGSTOP), "it heard")
            now_s[0] = at_s
            beside.look()
            return pid in beside.pids()

        assert looked(signal.SIGSTOP, 1.0)
        assert looked(signal.SIGCONT, 9.0)
        assert looked(signal.SIGSTOP, 11.0)
        assert looked(None, 20.9)
        assert not looked(None, 21.0)
        for companion in beside.pids():
            os.kill(companion, signal.SIGKILL)
        beside.stop_all()
    died_of = "SIGKILL, after it had been stopped for 10 s"
    assert said == [f"the exporter ended with {died_of}: started again"]
    restarts = [entry.event for entry in read(RunDir.at(tmp_path))]
    assert restarts == [HelperRestarted("exporter", died_of)]


def test_a_companion_that_has_nothing_left_to_do_is_let_go(tmp_path: Path):
    with Watch() as watch, Recorder(RunDir.at(tmp_path), "run-1", "launcher-0") as recorder:
        recipe = Recipe("injector", ["keyword"], may_finish=True)
        beside = Beside([recipe], tmp_path / "log", watch, recorder, _nobody, pytest.fail)
        beside.start()
        assert watch.wait(30)[0] == {"injector"}
        beside.look()
        assert beside.has_given_up("injector")
    assert list(read(RunDir.at(tmp_path))) == []


@pytest.mark.processes
def test_training_goes_on_though_nothing_can_be_printed(bench: Bench):
    flags = ("run", "--run", "run", "--no-metrics")
    script = bench.write("s.py", "print(1)\n")
    run = bench.zygote.launch([*flags, script], bench.folder, output=Path("/dev/full"))
    assert run.wait() == 0
    assert bench.events(RunFinished) == [RunFinished(Outcome.FINISHED)]


@pytest.mark.processes
def test_a_launcher_that_still_imports_leaves_on_sigterm_to_be_run_again(tmp_path: Path):
    (tmp_path / "s.py").touch()
    command = [sys.executable, "-m", "harness", "run", "--run", "run", "s.py"]
    with subprocess.Popen(command, cwd=tmp_path) as launcher:
        until(lambda: has_handler(launcher.pid, signal.SIGTERM), "it obeys signals")
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(30) == 75
    assert not (tmp_path / "run").exists()


@pytest.mark.processes
def test_a_log_that_can_be_written_no_more_costs_no_drain(bench: Bench):
    script = bench.write(
        "s.py",
        "import json, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "print(json.dumps({}))\n"
        "time.sleep(1000)\n",
    )
    run = bench.launch(script)
    bench.told()
    full = (1, resource.getrlimit(resource.RLIMIT_FSIZE)[1])  # as a full disk refuses more
    resource.prlimit(run.pid, resource.RLIMIT_FSIZE, full)
    run.signal(signal.SIGTERM)
    assert run.wait(20) == 75
    assert bench.events(DrainRequested) == []


@pytest.mark.processes
def test_an_attempt_whose_logs_have_no_place_ends_the_run_with_that_reason(bench: Bench):
    script = bench.write(
        "s.py",
        "import os, pathlib\n"
        "pathlib.Path('run/logs/attempt-2').write_text('in the way')\n"
        "os._exit(1)\n",
    )
    run = bench.launch(script)
    assert run.wait() == 1
    assert "failed: attempt 2 cannot be started: " in run.printed
    assert [event.outcome for event in bench.events(RunFinished)] == [Outcome.FAILED]


@pytest.mark.processes
def test_an_attempt_whose_folder_was_deleted_ends_the_run_with_that_reason(bench: Bench):
    script = bench.write("leave.py", "import os, shutil\nshutil.rmtree(os.getcwd())\nos._exit(1)")
    (bench.folder / "gone").mkdir()
    flags = ("--run", bench.folder / "run", "--nproc-per-node", "1", "--no-metrics", "--quiet")
    run = bench.zygote.launch(["run", *flags, script], bench.folder / "gone")
    assert run.wait() == 1
    (finished,) = bench.events(RunFinished)
    assert finished.reason.startswith("attempt 2 cannot be started: ")


@pytest.mark.processes
def test_storage_that_takes_no_attempt_ends_the_run_with_that_reason(bench: Bench):
    script = bench.write(
        "s.py",
        "import os, shutil\n"
        "shutil.rmtree('run/checkpoints')\n"
        "open('run/checkpoints', 'w').close()\n"
        "os._exit(1)\n",
    )
    run = bench.launch(script)
    assert run.wait() == 1
    assert "failed: no attempt can be claimed in the storage: " in run.printed


@pytest.mark.processes
def test_the_companions_of_a_killed_launcher_die_too(bench: Bench):
    script = bench.write("s.py", "import json, time\nprint(json.dumps({}))\ntime.sleep(1000)\n")
    bench.write("plan.toml", PLAN)
    flags = ("run", "--run", "run", "--metrics-port", "0", "--faults", "plan.toml")
    run = bench.zygote.launch([*flags, "--nproc-per-node", "2", script], bench.folder)
    bench.launched.append(run)
    bench.told()
    until(lambda: len(_companions(run.pid)) == 3, "saver, exporter and injector run")
    run.signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    until(lambda: not bench.zygote.below(), "all that the launcher started is gone", 5.0)


@pytest.mark.processes
def test_a_plan_of_faults_breaks_the_run_and_the_run_comes_back(bench: Bench):
    bench.write("plan.toml", PLAN)
    flags = ("--faults", "plan.toml", "--save-every-steps", "2")
    run = bench.launch(*flags, "steps.py", "9999", ranks=2, environment={"STEP_S": "0.05"})
    until(lambda: bench.events(FaultConfirmed), "the fault strikes")
    until(lambda: len(bench.events(TrainingResumed)) == 2, "training goes on")
    run.signal(signal.SIGTERM)
    assert run.wait() == 75, run.printed
    assert [event.rank for event in bench.events(FailureDetected)] == [1]
    assert len(bench.events(FaultConfirmed)) == 1
    assert len(bench.events(RanksSpawned)) == 2


@pytest.mark.processes
def test_a_mistake_in_the_call_exits_2_and_says_one_thing(bench: Bench):
    run = bench.launch("--nnodes", "2", "reduce.py", "1")
    assert run.wait() == 2
    assert run.printed == (
        "harness run: --nnodes 2 is not supported yet: a run has one node, so use --nnodes 1\n"
        "(see harness run --help)\n"
    )
    assert not bench.run_dir.path.exists()
    many = bench.launch("--nproc-per-node", "many", "reduce.py", "1")
    assert many.wait() == 2
    assert "--nproc-per-node many: Unsupported nproc_per_node value: many" in many.printed


def test_a_rank_is_told_all_that_torchrun_tells(bench: Bench):
    place = Place(
        rank=1,
        world_size=4,
        role="default",
        attempt=7,
        first_attempt=5,
        restarts=2,
        max_restarts=3,
        port=12345,
    )
    shared = Shared(bench.run_dir, "run-1", "job-9", {}, threads=2)
    told = environment(place, shared)
    assert {name: value for name, value in told.items() if not name.startswith("HARNESS_")} == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "ROLE_RANK": "1",
        "ROLE_NAME": "default",
        "GROUP_RANK": "0",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "4",
        "ROLE_WORLD_SIZE": "4",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "12345",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "job-9",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": str(bench.run_dir.error(7, 1)),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "2",
    }


def _nobody(_line: str) -> None:
    """Hears what is said."""


def _companions(launcher: int) -> list[psutil.Process]:
    """Saver, exporter and injector of a launcher, once they are what they are called."""
    names = {"harness.checkpoint.saver", "export", "inject"}
    children = psutil.Process(launcher).children()
    return [child for child in children if names & set(child.cmdline())]


def _named(launcher: int, name: str) -> Any:
    """The companion with `name` in its command; None while it is not what it is called."""
    return next((it for it in _companions(launcher) if name in it.cmdline()), None)
