from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from launch.doctor.command import status, text, to_json
from launch.doctor.facts import (
    Asked,
    Clock,
    Disk,
    Facts,
    Finding,
    Kernel,
    Level,
    Limits,
    Memory,
    Ports,
    Spy,
    Storage,
)
from launch.doctor.judge import findings
from tests.launch.doctor.machines import ASKED, CPU, GB, GPU, H100, with_trial

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL


def of(check: str, facts: Facts, asked: Asked = ASKED) -> Finding:
    (found,) = [one for one in findings(facts, asked) if one.check == check]
    return found


@pytest.mark.parametrize("facts", [CPU, GPU])
def test_a_machine_on_which_all_is_well(facts):
    found = findings(facts, ASKED)
    assert [one.check for one in found if one.level is not OK] == []
    assert len({one.check for one in found}) == len(found) == 14


@pytest.mark.parametrize(
    ("facts", "check", "level", "words", "advice"),
    [
        (
            with_trial(CPU, torch="", error="No module named torch"),
            "torch",
            FAIL,
            "No module",
            "pip",
        ),
        (with_trial(CPU, torch="2.8.1"), "torch", FAIL, "torch 2.8.1", "torch 2.9 is the oldest"),
        (replace(CPU, python="3.10.4"), "torch", FAIL, "Python 3.10.4", "Python 3.11"),
        (replace(CPU, kernel=Kernel(nvidia_devices=8)), "gpus", WARN, "8 of NVIDIA", "CUDA build"),
        (with_trial(GPU, gpus=(H100,)), "gpus", FAIL, "1 × NVIDIA H100", "--nproc-per-node 1"),
        (
            with_trial(GPU, gpus=(H100, replace(H100, name="NVIDIA A100"))),
            *("gpus", WARN, "1 × NVIDIA A100 (80 GiB, 989 TFLOP/s in bfloat16)", "slowest"),
        ),
        (
            replace(CPU, kernel=Kernel(missing=("pidfd_open",))),
            *("start", FAIL, "the kernel refuses pidfd_open", "seccomp"),
        ),
        (with_trial(CPU, obstacle="2 threads"), "start", WARN, "2 threads", "fresh interpreters"),
        (with_trial(CPU, store_s=None, error="refused"), "store", FAIL, "refused", "127.0.0.1"),
        (with_trial(CPU, group_s=None, error="died"), "backend", FAIL, "died", "127.0.0.1"),
        (with_trial(CPU, group_s=9.0), "backend", WARN, "in 9.00 s", "each restart waits"),
        (
            replace(CPU, memory=Memory(15 * GB, 16 * GB, GB)),
            *(
                "memory",
                FAIL,
                "15 GB to be had (the container's limit is 16 GB), 20 GB needed",
                "raise",
            ),
        ),
        (
            replace(CPU, memory=Memory(22 * GB, None, GB)),
            "memory",
            WARN,
            "22 GB to be had",
            "tight",
        ),
        (
            replace(CPU, memory=Memory(64 * GB, None, None)),
            "shared memory",
            FAIL,
            "no /dev/shm",
            "ipc",
        ),
        (
            replace(CPU, memory=Memory(64 * GB, None, 67_108_864)),
            *("shared memory", WARN, "67.1 MB free", "--shm-size"),
        ),
        (
            replace(GPU, memory=Memory(64 * GB, None, 67_108_864)),
            *("shared memory", FAIL, "67.1 MB free", "--shm-size"),
        ),
        (
            replace(CPU, disk=Disk(Path("/r"), error="Read-only file system")),
            *("disk", FAIL, "/r: Read-only file system", "--run"),
        ),
        (replace(CPU, disk=Disk(Path("/r"), "tmpfs", GB, 0.0)), "disk", WARN, "tmpfs", "is gone"),
        (replace(CPU, disk=Disk(Path("/r"), "nfs", GB, 0.9)), "disk", WARN, "in 900 ms", "faster"),
        (
            replace(CPU, storage=Storage("/ckpt", free_bytes=9 * GB)),
            *("storage", FAIL, "9 GB free, 16 GB needed = (3 kept + 1) × 4 GB", "make room"),
        ),
        (
            replace(CPU, storage=Storage("x", "it overwrote a file")),
            *("storage", FAIL, "it overwrote a file", "--checkpoints"),
        ),
        (
            replace(CPU, storage=Storage("s3://b", warnings=("its clock is 90 s ahead",))),
            *("storage", WARN, "90 s ahead", "set the clock"),
        ),
        (
            replace(CPU, limits=Limits(71, None, None)),
            "limits",
            FAIL,
            "files 71 (needs 72)",
            "ulimit -n",
        ),
        (replace(CPU, limits=Limits(1024, 79, None)), "limits", WARN, "left 79", "ulimit -u"),
        (replace(GPU, limits=Limits(1024, None, 65536)), "limits", WARN, "65.5 kB", "ulimit -l"),
        (
            replace(CPU, ports=Ports(False, "none to be had")),
            "ports",
            FAIL,
            "none to be",
            "sandbox",
        ),
        (
            replace(CPU, ports=Ports(False, refused="Permission denied")),
            *("ports", WARN, "9464: Permission denied", "from 1024 up"),
        ),
        (
            replace(CPU, ports=Ports(True)),
            "ports",
            WARN,
            "9464 for metrics is taken",
            "exporter.json",
        ),
        (replace(CPU, clock=Clock(False, True)), "clock", WARN, "not synchronised", "chrony"),
        (replace(CPU, clock=Clock(True, False)), "clock", WARN, "names no boot", "/proc"),
        (replace(CPU, spy=Spy(None, True)), "py-spy", WARN, "not installed", "pip install py-spy"),
        (replace(CPU, spy=Spy("/py-spy", False)), "py-spy", WARN, "look at nobody", "SYS_PTRACE"),
    ],
)
def test_one_thing_is_wrong(facts, check, level, words, advice):
    one = of(check, facts)
    assert (one.level, words in one.found, advice in one.advice) == (level, True, True), one


def test_what_is_just_enough_is_enough():
    assert of("torch", with_trial(CPU, torch="2.9.0")).level is OK
    assert of("limits", replace(CPU, limits=Limits(72, 80, None))).level is OK
    assert of("memory", replace(CPU, memory=Memory(20 * GB, None, GB))).level is WARN
    assert of("storage", replace(CPU, storage=Storage("/c", free_bytes=16 * GB))).level is OK


def test_what_is_wrong_with_torch_makes_nothing_else_guess():
    facts = replace(with_trial(CPU, torch="", error="no torch", store_s=None, group_s=None))
    failed = [one.check for one in findings(facts, ASKED) if one.level is FAIL]
    assert failed == ["torch", "store", "backend"]


def test_a_gpu_without_a_published_peak_is_no_worse():
    one = of("gpus", with_trial(GPU, gpus=(replace(H100, peak_flops=None),) * 2))
    what = "2 × NVIDIA H100 80GB HBM3 (80 GiB, no published peak: measured where MFU is asked for)"
    assert (one.level, one.found) == (OK, what)


def test_without_a_size_the_copies_are_said_but_not_judged():
    one = of(
        "memory", replace(CPU, memory=Memory(1000, None, GB)), replace(ASKED, state_bytes=None)
    )
    assert (one.level, one.found) == (OK, "1 kB to be had")
    assert one.advice == "give the size of what is saved: 3 × it is needed, as in --state 4GB"


def test_on_gpus_the_ranks_own_states_are_not_in_memory():
    assert of("memory", GPU).found == "64 GB to be had, 12 GB needed = (3 copies) × 4 GB"
    assert of("memory", CPU).found == "64 GB to be had, 20 GB needed = (3 copies + 2 ranks) × 4 GB"


def test_without_copies_in_memory_one_less_is_needed():
    found = of("memory", GPU, replace(ASKED, memory=False)).found
    assert found == "64 GB to be had, 8 GB needed = (2 copies) × 4 GB"


def test_the_answer_for_people_and_for_programs():
    found = [Finding("torch", OK, "there"), Finding("disk", WARN, "slow", "buy a faster one")]
    assert text(found) == (
        "ok    torch  there\n"
        "warn  disk   slow\n"
        "             → buy a faster one\n"
        "1 ok, 1 warn, 0 fail"
    )
    assert to_json(found, ASKED) == {
        "schema": 1,
        "ranks": 2,
        "level": "warn",
        "findings": [
            {"check": "torch", "level": "ok", "found": "there", "advice": ""},
            {"check": "disk", "level": "warn", "found": "slow", "advice": "buy a faster one"},
        ],
    }


def test_only_a_failed_check_is_a_no():
    levels: Sequence[Sequence[Level]] = ([], [OK], [OK, WARN], [FAIL, OK])
    assert [status([Finding("x", level, "") for level in each]) for each in levels] == [0, 0, 0, 1]
