from dataclasses import replace

import pytest

from launch import watchdog
from launch.doctor.detection import Sum, detection, elsewhere, steady, unwatched
from launch.doctor.facts import Level
from launch.restarts import NS
from tests.launch.doctor.machines import ASKED, CPU, GPU

NCCL = "cuda:nccl,cpu:gloo"


def test_a_hang_in_a_normal_step_by_hand():
    worst = steady(watchdog.Limits(), 0.5, records=False)
    assert str(worst) == "5.5 s = --hang-after 2.5 s + two looks 0.5 s + stacks 2.5 s"


def test_slow_steps_are_waited_for_longer():
    worst = steady(watchdog.Limits(), 2.0, records=True)
    assert worst.parts == {
        "5 × the slowest step": 10.0,
        "two looks": 0.5,
        "stacks": 2.5,
        "NCCL's recorder": 2.0,
    }


def test_the_limit_that_is_reached_last():
    worst = elsewhere(watchdog.Limits(save_ns=7200 * NS), records=True)
    assert worst.parts == {
        "--save-limit": 7200.0,
        "two looks": 0.5,
        "stacks": 2.5,
        "NCCL's recorder": 2.0,
    }


@pytest.mark.parametrize(
    ("backend", "environment", "total_s"),
    [
        ("gloo", {}, 1800.0),
        (NCCL, {}, 600 + 15 + 480.0),
        (NCCL, {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "60"}, 600 + 15 + 60.0),
        (NCCL, {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000"}, 600 + 1 + 480.0),
        (NCCL, {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "soon"}, 600 + 15 + 480.0),
        (NCCL, {"TORCH_NCCL_ENABLE_MONITORING": "0"}, 615.0),
        (NCCL, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, None),
    ],
)
def test_what_is_left_where_nobody_watches(backend, environment, total_s):
    worst = unwatched(backend, environment)
    assert (None if worst is None else worst.total_s) == total_s


def test_nobody_watches():
    found = detection(GPU, replace(ASKED, limits=None))
    assert found.level is Level.WARN
    assert found.found.startswith(
        "nobody watches; torch gives up after 1095 s = NCCL's time-out 600 s"
    )
    never = replace(GPU, environment={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"})
    assert (
        detection(never, replace(ASKED, limits=None)).found
        == "nobody watches; torch gives up never"
    )


def test_the_usual_case_on_the_cpu_adds_up_to_seconds_in_a_step():
    found = detection(CPU, ASKED)
    assert (found.level, found.advice) == (Level.OK, "")
    assert found.found == (
        "in a normal step at most 5.5 s = --hang-after 2.5 s + two looks 0.5 s + stacks 2.5 s;"
        " elsewhere at most 1203 s = --first-step-limit 1200 s + two looks 0.5 s + stacks 2.5 s"
    )


@pytest.mark.parametrize(
    ("environment", "level", "words", "advice"),
    [
        ({}, Level.OK, "ended by NCCL after 600 s", "TORCH_FR_BUFFER_SIZE=2000"),
        ({"TORCH_FR_BUFFER_SIZE": "2000"}, Level.OK, "NCCL's recorder 2 s", ""),
        (
            {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"},
            Level.WARN,
            "HANDLING=0",
            "unset TORCH_NCCL_ASYNC",
        ),
        ({"TORCH_NCCL_BLOCKING_WAIT": "1"}, Level.WARN, "WAIT is set", "unset TORCH_NCCL_BLOCKING"),
    ],
)
def test_nccl_s_variables_change_what_is_found(environment, level, words, advice):
    found = detection(replace(GPU, environment=environment), ASKED)
    assert (found.level, words in found.found) == (level, True), found
    assert found.advice.startswith(advice)


def test_a_sum_is_the_sum_of_its_parts():
    assert Sum({"a": 0.1, "b": 0.2}).total_s == pytest.approx(0.3)
