import os
import subprocess
import sys

from harness.membership import Membership, start_ticks


def test_a_lone_process_is_rank_0_of_1():
    assert Membership.read({}) == Membership(0, 1, 0, 1, 0, elastic=False)


def test_an_elastic_rank_is_what_its_agent_says():
    environ = {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_RUN_ID": "none",
    }
    assert Membership.read(environ) == Membership(5, 8, 1, 4, 2, elastic=True)


def test_a_process_starts_after_the_one_that_started_it_whatever_its_name():
    # The name of a process stands in parentheses in /proc/PID/stat and may hold spaces and more.
    code = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'a) (b c', 0, 0, 0); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert start_ticks(child.pid) >= start_ticks(os.getpid()) > 0
