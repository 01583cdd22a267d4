import os
import subprocess
import sys
import time

from harness.beginning import began_ns, start_ticks
from harness.rundir import RunDir


def test_a_process_starts_after_the_one_that_started_it_whatever_its_name():
    # The name of a process stands in parentheses in /proc/PID/stat and may hold spaces and more.
    code = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'a) (b c', 0, 0, 0); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert start_ticks(child.pid) >= start_ticks(os.getpid()) > 0


def test_a_launch_began_with_its_process_not_with_its_first_line(tmp_path):
    run_dir = RunDir.at(tmp_path)
    run_dir.create()
    before_ns = time.monotonic_ns()
    with subprocess.Popen(["sleep", "1000"]) as child:
        began = began_ns(run_dir, child.pid)
        child.kill()
    # The kernel counts the start of a process in hundredths of a second, by another clock.
    assert before_ns - 20_000_000 <= began <= time.monotonic_ns()


def test_a_launch_does_not_begin_before_the_one_before_it_has_ended(tmp_path):
    run_dir = RunDir.at(tmp_path)
    run_dir.create()
    with subprocess.Popen(["sleep", "1000"]) as child:
        time.sleep(0.05)
        run_dir.event_file("launcher-0").write_text("the last line of the launch before")
        written_ns = time.monotonic_ns()
        began = began_ns(run_dir, child.pid)
        child.kill()
    assert written_ns <= began <= time.monotonic_ns()
