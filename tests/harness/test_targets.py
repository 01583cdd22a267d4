"""When a run came to a target: what it holds counts, what it went back behind does not."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given

from harness.cli import main
from harness.events import (
    AttemptStarted,
    Cause,
    Entry,
    EvaluationFinished,
    EvaluationStarted,
    Event,
    FailureDetected,
    RestoreStarted,
    StepFinished,
    Tier,
    TrainingResumed,
)
from harness.fold import Fold
from harness.report.reached import targets
from harness.tallies import MOST_LOWS, Low, Lows
from harness.targets import START, Evaluation, Mark, Reached, evaluations, reached
from harness.timeline import timeline
from tests.harness.runs import S, log, start, step, walks
from tests.harness.stories import KILLED_ONCE, write


def evaluated(
    at_s: float, attempt: int, number: int, loss: float
) -> list[tuple[float, int, Event]]:
    return [
        (at_s, attempt, EvaluationStarted(number)),
        (at_s + 1, attempt, EvaluationFinished(number, loss)),
    ]


WENT_BACK = log(
    *start(),
    (10, 1, step(2)),
    *evaluated(10, 1, 2, 3.0),
    (15, 1, step(3)),
    *evaluated(15, 1, 3, 2.0),
    (17, 1, FailureDetected(0, Cause.SIGNAL, "SIGKILL")),
    (18, 2, AttemptStarted(2)),
    (19, 2, RestoreStarted()),
    (20, 2, TrainingResumed(2, Tier.STORAGE, 1)),
    (25, 2, step(3)),
    *evaluated(25, 2, 3, 2.5),
    (30, 2, step(4)),
    *evaluated(30, 2, 4, 1.9),
)
"""Eight seconds until the first step; then the third step is lost, and is worse when it is done again."""


def test_what_the_run_went_back_behind_does_not_count():
    assert evaluations(WENT_BACK) == [
        Evaluation(3.0, Mark(2, 20, 11.0, 2.0)),
        Evaluation(2.5, Mark(3, 30, 26.0, 3.0)),
        Evaluation(1.9, Mark(4, 40, 31.0, 8.0)),
    ]


def test_an_evaluation_before_its_step_is_finished_waits_for_it():
    told = log(
        *start(),
        *evaluated(10, 1, 2, 3.0),
        (13, 1, step(2)),
        *evaluated(15, 1, 3, 2.0),
        (17, 1, FailureDetected(0, Cause.SIGNAL, "SIGKILL")),
        (18, 2, AttemptStarted(2)),
        (19, 2, RestoreStarted()),
        (20, 2, TrainingResumed(2, Tier.STORAGE, 1)),
        (25, 2, step(3)),
        *evaluated(25, 2, 4, 1.5),
    )
    assert evaluations(told) == [Evaluation(3.0, Mark(2, 20, 11.0, 5.0))]


def test_steps_that_are_done_again_or_by_the_dead_count_once():
    told = log(
        *start(),
        (10, 1, step(2)),
        (12, 1, step(3)),
        (14, 1, step(3)),
        (15, 1, FailureDetected(0, Cause.SIGNAL, "SIGKILL")),
        (16, 2, AttemptStarted(2)),
        (17, 2, RestoreStarted()),
        (18, 2, TrainingResumed(3, Tier.STORAGE, 1)),
        (19, 1, step(4)),
        (20, 2, step(4)),
        *evaluated(20, 2, 4, 1.5),
    )
    assert evaluations(told) == [Evaluation(1.5, Mark(4, 40, 21.0, 5.0))]


def test_the_first_evaluation_at_or_below_the_target_is_it():
    held = evaluations(WENT_BACK)
    assert reached(held, 2.0) == Reached(1.9, held[1].at, held[2].at)
    assert reached(held, 2.5) == Reached(2.5, held[0].at, held[1].at)
    assert reached(held, 9.0) == Reached(3.0, START, held[0].at)
    assert reached(held, 1.0) is None
    assert reached([], 1.0) is None


def test_a_loss_that_rises_again_does_not_unreach():
    marks = [Mark(number, number, float(number), float(number)) for number in range(4)]
    held = [Evaluation(loss, at) for loss, at in zip([3.0, 2.0, 2.6, 1.0], marks, strict=True)]
    assert reached(held, 2.5) == Reached(2.0, marks[0], marks[1])


def test_an_evaluation_of_a_dead_attempt_does_not_count():
    late = log(*start(), *[(20, 1, FailureDetected(0, Cause.HANG, ""))], *evaluated(30, 1, 1, 1.0))
    assert evaluations(late) == []


def test_not_a_number_reaches_nothing():
    held = [Evaluation(float("nan"), START)]
    assert reached(held, 100.0) is None


@given(walks())
def test_evaluations_rise_in_step_and_time_and_belong_to_what_is_held(walked):
    held = evaluations(walked)
    steps = [one.at.step for one in held]
    assert steps == sorted(steps)
    for before, after in pairwise(held):
        assert before.at.wall_s <= after.at.wall_s
        assert before.at.kept_s <= after.at.kept_s + 1e-9
        assert before.at.tokens <= after.at.tokens
    tokens = sum(
        entry.event.tokens
        for entry in timeline(walked).kept
        if isinstance(entry.event, StepFinished)
    )
    assert all(one.at.tokens <= tokens for one in held)
    assert all(one.at.kept_s <= one.at.wall_s + 1e-9 for one in held)


def lows(entries: Sequence[Entry]) -> Lows:
    fold = Fold()
    for entry in entries:
        fold.feed(entry)
    return fold.lows


@pytest.mark.parametrize("target", [9.0, 3.0, 2.5, 2.0, 1.0])
def test_a_scrape_tells_what_is_told_of_the_whole_log(target):
    low, by = lows(WENT_BACK).first(target), reached(evaluations(WENT_BACK), target)
    told = None if low is None else (low.step, low.wall_ns / S, low.loss)
    assert told == (None if by is None else (by.by.step, by.by.wall_s, by.loss))


def test_a_target_that_the_run_went_back_behind_is_not_reached_any_more():
    before = [entry for entry in WENT_BACK if entry.at_ns - WENT_BACK[0].at_ns <= 16 * S]
    assert lows(before).first(2.0) == Low(3, 2.0, 16 * S)
    assert lows(WENT_BACK).first(2.0) == Low(4, 1.9, 31 * S)


@given(walks())
def test_lows_fall_and_their_steps_and_times_rise(walked):
    for before, after in pairwise(lows(walked).found):
        assert before.loss > after.loss
        assert before.step <= after.step
        assert before.wall_ns <= after.wall_ns


def test_not_a_number_is_no_low_and_the_lowest_are_kept():
    found = Lows()
    found.add(Low(1, math.nan, 1))
    assert found.found == []
    for number in range(2 * MOST_LOWS):
        found.add(Low(number, -float(number), number))
    assert [low.step for low in found.found] == list(range(MOST_LOWS, 2 * MOST_LOWS))


def test_targets_come_highest_first():
    assert targets("2.4, 2.8,2.6,2.6") == [2.8, 2.6, 2.4]


def test_the_command_names_from_and_to(tmp_path, capsys):
    run = write(tmp_path / "run", KILLED_ONCE).path
    assert main(["target", str(run), "--loss", "4,5,3"]) == 0
    out = capsys.readouterr().out
    assert f"{run}: 1 evaluation, once, down to 3.5000" in out
    assert "3.5000   0..4  0..400" in out
    assert "not reached" in out


def test_two_runs_stand_side_by_side(tmp_path, capsys):
    one = write(tmp_path / "one", KILLED_ONCE).path
    peaceful = [line for line in KILLED_ONCE if not 1700 <= line[0] <= 2000]
    peaceful = [
        (ms, writer, 0 if attempt == 1 else attempt, event)
        for ms, writer, attempt, event in peaceful
    ]
    other = write(tmp_path / "other", peaceful).path
    assert main(["target", str(one), str(other), "--loss", "4"]) == 0
    assert f"{other} / {one}: steps × 1.00, tokens × 1.00, wall × 1.00" in capsys.readouterr().out
    assert main(["target", str(one), str(other), "--loss", "4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    first = told["runs"][0]["targets"][0]
    assert (first["loss"], first["reached"]["loss"]) == (4.0, 3.5)
    assert first["reached"]["by"] == {"step": 4, "tokens": 400, "wall_s": 2.5, "kept_s": 1.0}
    assert told["runs"][1]["targets"][0]["reached"]["after"]["step"] == 3


def test_a_run_that_does_not_get_there_is_compared_with_none(tmp_path, capsys):
    one = write(tmp_path / "one", KILLED_ONCE).path
    worse = [
        (ms, writer, attempt, replace(event, loss=9.0))
        if isinstance(event, EvaluationFinished)
        else (ms, writer, attempt, event)
        for ms, writer, attempt, event in KILLED_ONCE
    ]
    other = write(tmp_path / "other", worse).path
    for runs in ([one, other], [other, one]):
        assert main(["target", *map(str, runs), "--loss", "4"]) == 0
        out = capsys.readouterr().out
        assert out.count("not reached") == 1
        assert f"{runs[1]} / {runs[0]}" not in out


@pytest.mark.parametrize("loss", ["", "much", "2.8,,2", "nan", "inf"])
def test_a_loss_that_is_none_is_refused(tmp_path, capsys, loss):
    run = write(tmp_path / "run", KILLED_ONCE).path
    assert main(["target", str(run), "--loss", loss]) == 2
    assert "write for example 2.8,2.6,2.4" in capsys.readouterr().err


def test_where_there_is_nothing_to_look_for_it_says_so(tmp_path, capsys):
    bare = write(tmp_path / "bare", [line for line in KILLED_ONCE if line[0] < 1540]).path
    assert main(["target", str(bare), "--loss", "3"]) == 2
    assert (
        capsys.readouterr().err
        == f"harness: no evaluation with a loss in {bare}: nothing to look for\n"
    )
    assert main(["target", str(tmp_path / "none"), "--loss", "3"]) == 2
    assert "there is no such directory" in capsys.readouterr().err
    assert main(["target", "--loss", "3"]) == 2
