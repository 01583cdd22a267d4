"""A script behaves as under `python script.py`, in a forked rank and in a cold one."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.events import FailureDetected, RanksSpawned
from tests.launch.conftest import SCRIPTS, Bench
from tests.waiting import until

pytestmark = pytest.mark.processes
WARM_AND_COLD = pytest.mark.parametrize("flags", [(), ("--cold",)], ids=["warm", "cold"])


def _under_python(*command: str, folder: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    told: dict[str, object] = json.loads(done.stdout)
    return told


@WARM_AND_COLD
def test_a_script_finds_the_world_that_python_gives_it(bench: Bench, flags: tuple[str, ...]):
    shutil.copytree(SCRIPTS, bench.folder / "sub")
    expected = _under_python("sub/mirror.py", "--lr", "3", folder=bench.folder)
    assert bench.launch(*flags, "sub/mirror.py", "--lr", "3").wait() == 0, bench.printed(
        stream="err"
    )
    assert bench.told() == expected


def test_a_module_finds_the_world_that_python_gives_it(bench: Bench):
    shutil.copytree(SCRIPTS, bench.folder / "sub")
    (bench.folder / "sibling.py").touch()
    expected = _under_python("-m", "sub.mirror", "x", folder=bench.folder)
    assert bench.launch("-m", "sub.mirror", "x").wait() == 0, bench.printed(stream="err")
    assert bench.told() == expected


def test_a_folder_with_a_main_runs_as_under_python(bench: Bench):
    shutil.copytree(SCRIPTS, bench.folder / "app")
    (bench.folder / "app/mirror.py").rename(bench.folder / "app/__main__.py")
    expected = _under_python("app", folder=bench.folder)
    assert bench.launch("app").wait() == 0, bench.printed(stream="err")
    assert bench.told() == expected


def test_a_sibling_is_found_though_the_launcher_has_a_module_of_that_name(bench: Bench):
    bench.write("launch/__init__.py", "it = 'mine'\n")
    bench.write("functorch.py", "it = 'mine too'\n")  # torch brings a package of that name
    script = bench.write(
        "s.py",
        "import json, launch, functorch\nprint(json.dumps({'it': launch.it + functorch.it}))\n",
    )
    assert bench.launch(script).wait() == 0, bench.printed(stream="err")
    assert bench.told() == {"it": "minemine too"}


@WARM_AND_COLD
def test_what_is_printed_is_in_the_ranks_own_logs_from_c_too(bench: Bench, flags: tuple[str, ...]):
    script = bench.write(
        "s.py",
        "import atexit, ctypes, os, sys\n"
        "rank = os.environ['RANK']\n"
        "atexit.register(print, 'at exit', rank)\n"
        "print('python', rank)\n"
        "os.write(1, b'descriptor\\n')\n"
        "ctypes.CDLL(None).puts(b'C')\n"
        "print('oops', rank, file=sys.stderr)\n"
        "kept = open(f'kept-{rank}', 'w')\n"
        "kept.write('never closed')\n",
    )
    assert bench.launch(*flags, script, ranks=2).wait() == 0
    for rank in ("0", "1"):
        out = bench.printed(rank=int(rank))
        assert sorted(out.splitlines()) == ["C", f"at exit {rank}", "descriptor", f"python {rank}"]
        assert bench.printed(rank=int(rank), stream="err") == f"oops {rank}\n"
        assert (bench.folder / f"kept-{rank}").read_text() == "never closed"
    assert "python" not in bench.launched[0].printed


@pytest.mark.parametrize("leave", ["raise LookupError('gone')", "sys.exit(3)"])
def test_what_a_failing_script_left_open_is_in_its_files(bench: Bench, leave: str):
    bench.write("kept.py", "file = open('kept', 'w')\n")
    script = bench.write(
        "s.py",
        "import atexit, ctypes, sys, threading, time, kept\n"
        "atexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.5), print('thread'))).start()\n"
        "ctypes.CDLL(None).puts(b'C')\n"
        "kept.file.write('never closed')\n"
        f"{leave}\n",
    )
    assert bench.launch("--max-restarts", "0", script).wait() == 1
    assert sorted(bench.printed().splitlines()) == ["C", "at exit", "thread"]
    assert (bench.folder / "kept").read_text() == "never closed"


@WARM_AND_COLD
def test_an_exception_is_printed_without_our_frames_and_kept_in_the_error_file(
    bench: Bench, flags: tuple[str, ...]
):
    source = "def deep():\n    raise LookupError('gone\\nfor good')\n\n\ndeep()\n"
    script = bench.write("s.py", source)
    alone = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert bench.launch(*flags, "--max-restarts", "0", script).wait() == 1
    assert bench.printed(stream="err") == alone.stderr
    content = json.loads(bench.run_dir.error(1, 0).read_text())
    assert content["type"] == "LookupError"
    assert content["where"] == f"{script}:2"
    assert content["message"]["message"] == "LookupError: gone\nfor good"
    assert content["message"]["extraInfo"]["py_callstack"] == alone.stderr
    (failure,) = bench.events(FailureDetected)
    assert failure.reason == "LookupError: gone …"


@pytest.mark.parametrize(
    ("leave", "said", "stderr"),
    [
        ("sys.exit(main())", "", ""),
        ("sys.exit(7)", "exit code 7", ""),
        (
            "sys.stdout = io.TextIOWrapper(sys.stdout.detach(), line_buffering=True)\nsys.exit(7)",
            "exit code 7",
            "",
        ),
        ("sys.exit('no data\\nat all')", "exit code 1: no data …", "no data\nat all\n"),
        ("os._exit(3)", "exit code 3", ""),
        ("os.kill(os.getpid(), 11)", "killed by SIGSEGV", None),
    ],
)
def test_the_way_a_script_leaves_is_told(bench: Bench, leave: str, said: str, stderr: str | None):
    script = bench.write(
        "s.py", f"import io, os, sys\n\n\ndef main():\n    return 0\n\n\n{leave}\n"
    )
    status = bench.launch("--max-restarts", "0", script).wait()
    assert status == (1 if said else 0)
    assert [failure.reason for failure in bench.events(FailureDetected)] == ([said] if said else [])
    if stderr is None:  # faulthandler says where
        assert "Segmentation fault" in bench.printed(stream="err")
    else:
        assert bench.printed(stream="err") == stderr


def test_a_module_that_is_not_in_its_package_is_named(bench: Bench):
    bench.write("package/__init__.py", "")
    assert bench.launch("-m", "package.nowhere").wait() == 1
    reasons = {failure.reason for failure in bench.events(FailureDetected)}
    assert reasons == {f"exit code 1: {sys.executable}: No module named package.nowhere"}


def test_data_loader_workers_are_forked_and_spawned(bench: Bench):
    assert bench.launch("loaders.py").wait() == 0, bench.printed(stream="err")
    assert bench.told() == {"fork": 140, "spawn": 140}


def test_ranks_draw_different_numbers_and_have_the_threads_asked_for(bench: Bench):
    script = bench.write(
        "s.py",
        "import json, random\n"
        "import numpy, torch\n"
        "print(json.dumps([random.random(), numpy.random.rand(), torch.rand(1).item(),"
        " torch.get_num_threads(), torch.ones(500, 500).matmul(torch.ones(500, 500))[0, 0].item()]))\n",
    )
    assert bench.launch("--threads", "2", script, ranks=3).wait() == 0
    told = [json.loads(bench.printed(rank=rank)) for rank in range(3)]
    for kind in range(3):
        assert len({numbers[kind] for numbers in told}) == 3
    assert [numbers[3:] for numbers in told] == [[2, 500.0]] * 3


def test_a_module_that_starts_a_thread_is_not_preloaded_and_named_and_the_others_are(bench: Bench):
    bench.write(
        "busy.py",
        "import os, threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
        "pid = os.getpid()\n",
    )
    bench.write("slow.py", "import os\npid = os.getpid()\n")
    script = bench.write(
        "s.py",
        "import json, os, busy, slow\n"
        "print(json.dumps([it.pid == os.getpid() for it in (busy, slow)]))\n",
    )
    run = bench.launch("--preload", "busy,slow", script)
    assert run.wait() == 0
    assert json.loads(bench.printed()) == [True, False]
    assert bench.events(RanksSpawned) == [RanksSpawned(1, warm=True)]
    assert run.printed == (
        "harness run: --preload goes without busy: it starts a thread, which no fork takes along,"
        " so each rank imports it by itself\n"
    )


def test_a_module_that_cannot_be_imported_is_refused_by_name(bench: Bench):
    bench.write("broken.py", "raise RuntimeError('no licence')\n")
    run = bench.launch("--preload", "json,broken", bench.write("s.py", "print(1)\n"))
    assert run.wait() == 2
    assert "harness run: --preload broken: RuntimeError: no licence" in run.printed


def test_a_launcher_whose_fork_server_still_imports_leaves_when_it_is_told_to(bench: Bench):
    bench.write(
        "busy.py",
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n",
    )
    bench.write(
        "stuck.py",
        "import pathlib, time\n"
        "if (again := pathlib.Path('again')).exists():\n"
        "    pathlib.Path('stuck').touch()\n"
        "    time.sleep(1000)\n"
        "again.touch()\n",
    )
    run = bench.launch("--preload", "busy,stuck", bench.write("s.py", "print(1)\n"))
    until((bench.folder / "stuck").exists, "the fork server imports for ever")
    run.signal(signal.SIGTERM)
    assert run.wait() == 75
    assert bench.events(RanksSpawned) == []


def test_a_preloaded_module_is_there_in_every_rank_and_may_lie_beside_the_script(bench: Bench):
    bench.write("slow.py", "import os\npid = os.getpid()\n")
    bench.write("apart/beside.py", "import os\npid = os.getpid()\n")
    script = bench.write(
        "apart/s.py",
        "import json, os, sys, beside\n"
        "sys.path.append('.')\n"
        "import slow\n"
        "print(json.dumps({'own': [it.pid == os.getpid() for it in (slow, beside)]}))\n",
    )
    assert bench.launch("--preload", "slow,beside", script).wait() == 0
    assert bench.told() == {"own": [False, False]}


def test_a_rank_reaches_its_first_points_before_its_script_and_before_its_group(bench: Bench):
    bench.write(
        "armed.py",
        "import os\n"
        "from torch import distributed as dist\n"
        "from harness.points import Point, arm\n"
        "for point in (Point.FORKED, Point.JOIN, Point.GROUP):\n"
        "    arm(point, lambda point=point: print(point, os.environ['RANK'], dist.is_initialized()))\n",
    )
    script = bench.write("s.py", "print('script')\nimport harness\nlist(harness.join().steps(1))\n")
    assert bench.launch("--preload", "armed", script, ranks=2).wait() == 0
    assert bench.printed(1, 1).splitlines() == [
        "forked 1 False",
        "script",
        "join 1 False",
        "group 1 False",
    ]
