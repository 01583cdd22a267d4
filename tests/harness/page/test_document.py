import json
from collections.abc import Mapping, Sequence
from typing import Any

from harness.events import (
    AttemptStarted,
    HealthObserved,
    HelperRestarted,
    IntervalChosen,
    NonfiniteFound,
    Place,
    Reaction,
    RestoreStarted,
    RunStarted,
    StepFinished,
    StepTimed,
    Tier,
    TrainingResumed,
)
from harness.fold import Fold
from harness.page.document import LISTED_RANKS, document
from harness.present import Present
from harness.signals.straggler import Lag
from harness.signals.tally import Episode
from harness.slots import Mark, Slot, Stage
from tests.harness import stories

MS = 1_000_000
START_S = stories.START_MS / 1000


def told_at(
    ms: int,
    story: stories.Story = stories.KILLED_ONCE,
    *,
    is_led: bool = True,
    up: Sequence[bool] = (True, False),
    slots: Mapping[int, Slot] | None = None,
    log_until_ms: int | None = None,
) -> dict[str, Any]:
    """The document at `ms` of a story; of a log that may have ended before."""
    fold, until_ms = Fold(), ms if log_until_ms is None else log_until_ms
    for entry in stories.entries([line for line in story if line[0] <= until_ms]):
        fold.feed(entry)
    now = Present(
        job_name="run",
        run_id="r1",
        device="cpu",
        account=fold,
        is_led=is_led,
        up=up,
        slots=slots or {},
        boot_ns=0,
    )
    return document(now, (stories.START_MS + ms) * MS, 60)


def slot(step: int) -> Slot:
    return Slot(1, 80, Mark.STEPPING, Stage.COMPUTING, step, 0, 2, 0, 0, 5 * MS, 0, 4.0)


def test_a_run_in_the_middle_of_a_step_after_a_kill():
    told = told_at(2350)
    assert told["at_s"] == START_S + 2.35
    assert told["run"] == {
        "name": "run",
        "id": "r1",
        "outcome": "going",
        "reason": "",
        "phase": "work",
        "ranks": 2,
        "attempts": 2,
        "launches": 1,
        "manual_interventions": 0,
        "started_s": START_S,
        "wall_s": 2.35,
    }
    assert told["progress"]["step"] == 3
    assert told["progress"]["total_steps"] == 10
    assert told["progress"]["lost_steps"] == 1
    assert told["loss"]["training"] == [[1, 5.5], [2, 5.0], [3, 4.5]]
    assert told["loss"]["validation"] == [[3, 4.75]]


def test_a_restart_says_why_how_long_and_what_was_lost():
    told = told_at(2350)["restarts"]
    (record,) = told["records"]
    assert (told["failures"], told["count"], told["burnt"]) == (1, 1, 0)
    assert {key: record[key] for key in ("cause", "rank", "reason", "lost_steps", "at_s")} == {
        "cause": "signal",
        "rank": 1,
        "reason": "killed by SIGKILL",
        "lost_steps": 1,
        "at_s": START_S + 1.74,
    }


def test_a_checkpoint_grows_old_while_nothing_is_saved():
    (storage,) = told_at(1400)["checkpoints"]
    assert storage == {
        "tier": "storage",
        "committed": 1,
        "failed": 0,
        "last_step": 2,
        "age_s": 0.2,
        "last_bytes": 4_000_000,
        "last_stall_s": 0.04,
        "last_commit_s": 0.2,
        "under_way": [],
        "every_steps": None,
        "every_s": None,
        "why": "",
    }


def test_what_is_not_known_is_null_and_a_run_without_a_log_is_told_too():
    told = told_at(-1, is_led=False, up=[])
    assert told["run"]["outcome"] == "empty"
    assert told["run"]["started_s"] is None
    assert told["goodput"]["ratio"] is None
    assert told["loss"] == {"last": None, "training": [], "validation": []}
    assert told["strip"]["runs"] == []
    assert told["ranks"] == {"count": 0, "up": 0, "listed": []}


def test_a_run_whose_launcher_was_killed_is_down_from_its_last_word_on():
    told = told_at(1000, is_led=False)
    assert told["run"]["outcome"] == "lost"
    assert told["run"]["phase"] == "down"
    later = told_at(61_000, is_led=False, log_until_ms=1000)
    assert later["strip"]["runs"] == [["down", 240]]


def test_ranks_say_what_they_do_and_how_late_they_are():
    timed = [
        (at_ms, f"rank-{rank}", 1, StepTimed(step, own_ms * MS, 0))
        for at_ms, step in ((2200, 3), (2300, 4))  # the first of an attempt is not compared
        for rank, own_ms in ((0, 5), (1, 9))
    ]
    story = sorted((*stories.KILLED_ONCE, *timed), key=lambda line: line[0])
    told = told_at(2350, story, slots={0: slot(3), 1: slot(3)})["ranks"]
    assert told == {
        "count": 2,
        "up": 1,
        "listed": [
            {"rank": 0, "up": True, "step": 3, "doing": "stepping", "delay_s": 0.0, "named": None},
            {"rank": 1, "up": False, "step": 3, "doing": None, "delay_s": 0.004, "named": None},
        ],
    }


def test_of_thousands_of_ranks_those_that_are_down_are_listed_for_certain():
    up = [rank != 1999 for rank in range(2000)]
    told = told_at(2350, up=up)["ranks"]
    assert (told["count"], told["up"]) == (2000, 1999)
    assert len(told["listed"]) == LISTED_RANKS
    assert told["listed"][-1]["rank"] == 1999


def test_a_loss_that_is_no_number_is_spelled():
    story = (
        (0, "launcher-0", -1, RunStarted("r1", 1)),
        (1, "launcher-0", 0, AttemptStarted(1)),
        (2, "rank-0", 0, RestoreStarted()),
        (3, "rank-0", 0, TrainingResumed(0, None)),
        (4, "rank-0", 0, StepFinished(1, 0, 8, loss=float("nan"), loss_step=1)),
    )
    told = told_at(10, story)
    assert told["loss"] == {"last": "NaN", "training": [[1, "NaN"]], "validation": []}
    json.dumps(told, allow_nan=False)


def test_what_training_and_helpers_have_to_say_is_told_in_words():
    more = (
        (2400, "rank-0", 1, HealthObserved(3, grad_norm=0.5, clip_norm=1.0, clips=2, clipped=1)),
        (2400, "rank-0", 1, NonfiniteFound(4, Place.LOSS, Reaction.REPORT)),
        (2400, "launcher-0", 1, HelperRestarted("saver", "signal 9")),
        (2400, "rank-0", 1, IntervalChosen(Tier.STORAGE, 20, 4.5, 4.4, {}, "saves cost little")),
    )
    told = told_at(2450, (*(line for line in stories.KILLED_ONCE if line[0] <= 2350), *more))
    assert told["health"] == [
        {"text": "tokens: 400, 400 a second of work", "bad": False},
        {
            "text": "gradient norm: 0.5 before clipping to 1; 50.0% of steps were clipped",
            "bad": False,
        },
        {
            "text": "NaN or Inf in 1 step, the last in the loss of rank 0 at step 4: report",
            "bad": True,
        },
    ]
    assert told["helpers"] == [{"name": "saver", "restarts": 1, "reason": "signal 9"}]
    (storage,) = told["checkpoints"]
    assert (storage["every_steps"], storage["every_s"]) == (20, 4.5)
    assert storage["why"] == "saves cost little"


def test_a_straggler_is_named_while_it_is_one():
    fold = Fold()
    for entry in stories.entries([line for line in stories.KILLED_ONCE if line[0] <= 2350]):
        fold.feed(entry)
    fold.stragglers.episodes.append(Episode(1, Lag.DATA, 3, 0, None, 40 * MS, 0.3))
    now = Present("run", "r1", "cpu", fold, is_led=True, up=[True, True], slots={})
    told = document(now, (stories.START_MS + 2350) * MS, 60)
    assert [one["named"] for one in told["ranks"]["listed"]] == [None, "data"]
