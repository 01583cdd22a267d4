from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore

from harness.account import Account
from harness.checkpoint.messages import Channel
from harness.events import (
    AttemptStarted,
    Cause,
    Entry,
    Event,
    FailureDetected,
    IntervalChosen,
    RestoreStarted,
    RunStarted,
    SaveCommitted,
    SaveStarted,
    SaveUnblocked,
    StepFinished,
    Tier,
    TrainingResumed,
)
from harness.intervals import history
from harness.intervals.asked import Asked, Auto, Off, Seconds, Steps
from harness.intervals.begin import Overheard
from harness.intervals.cadence import Cadence, Word
from harness.intervals.choice import History
from harness.recorder import Recorder
from harness.rundir import RunDir
from harness.timeline import timeline
from tests.harness.runs import log, start

MEMORY, STORAGE = Tier.MEMORY, Tier.STORAGE
AUTO = Auto(Steps(1), Seconds(1e6))
DEADLINE_S = 20


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Ranks:
    """The cadences of some ranks, on one store; what rank 0 tells is in `log`."""

    def __init__(
        self, count: int, storage: Asked, memory: Asked | None = None, within_s: float = DEADLINE_S
    ) -> None:
        self.clock = Clock()
        self.log: list[Event] = []
        self.store = HashStore()
        asked = {MEMORY: memory or Off(), STORAGE: storage}
        self.each = [
            Cadence(asked, Channel(self.store, "c/"), rank, self.log.append, self.clock, within_s)
            for rank in range(count)
        ]

    def step(self, number: int, step_s: float = 0.1) -> list[int]:
        """Every rank comes to the boundary after step `number`; what each then saves by."""
        self.clock.now_s += step_s
        assert all(one.at_boundary(number) for one in self.each)
        return [one.every(STORAGE) for one in self.each]


def test_steps_that_were_asked_for_need_no_word():
    ranks = Ranks(2, Steps(7), Off())
    assert not ranks.each[0].moves
    assert ranks.step(1) == [7, 7]
    assert (ranks.each[1].every(MEMORY), ranks.log, ranks.store.num_keys()) == (0, [], 0)


def test_all_ranks_begin_with_a_guess_and_choose_once_the_log_is_read():
    ranks = Ranks(3, AUTO)
    assert ranks.step(11) == [50, 50, 50]
    ranks.each[0].saved(STORAGE, 0.5)
    assert ranks.step(12, 0.6) == [50, 50, 50]
    assert ranks.log == []
    ranks.each[0].learn(History())
    for number in range(13, 400):
        found = ranks.step(number)
        assert len(set(found)) == 1
    chosen = [event for event in ranks.log if isinstance(event, IntervalChosen)]
    assert [one.steps for one in chosen][:3] == [100, 200, 400]
    assert found == 3 * [chosen[3].steps]
    assert 600 < found[0] < 615  # 60 s and a little, for no failure comes all the while
    assert len(chosen) == 4


def test_seconds_become_steps_at_the_pace_of_the_job():
    ranks = Ranks(2, Seconds(30.0))
    assert ranks.step(1, 3.0) == [10, 10]
    ranks.each[0].learn(History())
    for number in range(2, 40):
        found = ranks.step(number, 0.5)
    assert found == [60, 60]
    assert [event.optimal_s for event in ranks.log if isinstance(event, IntervalChosen)] == [
        None
    ] * 2


def test_an_attempt_goes_on_from_the_choice_of_the_one_before():
    ranks = Ranks(1, AUTO)
    ranks.step(101)
    ranks.each[0].learn(History(up_s=1e4, save_s={STORAGE: 0.5}, steps={STORAGE: 900}))
    for number in range(102, 130):
        ranks.step(number)
    (chosen,) = ranks.log
    assert isinstance(chosen, IntervalChosen)
    assert 1536 <= chosen.steps <= 1540  # √(2 · 0.5 s · 23,600 s)
    assert chosen.inputs["save_s"] == 0.5


def test_a_rank_that_did_not_hear_saves_nothing_until_it_has(capsys: pytest.CaptureFixture[str]):
    ranks = Ranks(2, AUTO, within_s=0)
    ranks.step(1)
    behind = ranks.each[1]
    assert [behind.at_boundary(number) for number in (10, 60, 61)] == [True, False, False]
    assert "rank 1 does not know how often to save" in capsys.readouterr().err
    for number in range(2, 60):
        ranks.clock.now_s += 0.1
        assert ranks.each[0].at_boundary(number)
    assert behind.at_boundary(60)
    assert behind._next_step == ranks.each[0]._next_step


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(1e-3, 100.0), min_size=1, max_size=20), st.integers(0, 15))
def test_all_ranks_save_at_the_same_steps_whatever_the_pace(steps_s: list[float], known_at: int):
    ranks = Ranks(3, AUTO, AUTO)
    for number, step_s in enumerate(steps_s, 1):
        ranks.clock.now_s += step_s
        if number == known_at:
            ranks.each[0].saved(MEMORY, 0.02)
            ranks.each[0].learn(History(failures=number))
        with ThreadPoolExecutor(3) as pool:  # in whatever order they come
            assert all(pool.map(Cadence.at_boundary, reversed(ranks.each), 3 * [number]))
        assert len({(one.every(MEMORY), one.every(STORAGE)) for one in ranks.each}) == 1


def test_a_save_to_storage_costs_the_copy_that_memory_has_too():
    ranks = Ranks(1, AUTO, AUTO)
    ranks.each[0].learn(History())
    ranks.each[0].saved(MEMORY, 0.25)
    ranks.each[0].saved(STORAGE, 0.0)
    ranks.clock.now_s += 0.5
    assert ranks.each[0].at_boundary(1, commit_s=7.0)
    inputs = {one.tier: one.inputs for one in ranks.log if isinstance(one, IntervalChosen)}
    assert (inputs[STORAGE]["save_s"], inputs[STORAGE]["commit_s"]) == (0.25, 7.0)
    assert inputs[MEMORY]["save_s"] == 0.25


def test_a_tier_that_never_saved_leaves_all_failures_to_the_other():
    ranks = Ranks(1, AUTO, AUTO)
    ranks.each[0].learn(History(save_s={STORAGE: 0.5}))
    ranks.step(1)
    reasons = {one.tier: one.reason for one in ranks.log if isinstance(one, IntervalChosen)}
    assert reasons[MEMORY] == "no save was measured yet"
    assert reasons[STORAGE].startswith("60 s is best: a save blocks 0.5 s, a failure in 3600 s")


def test_a_tier_that_has_lost_its_room_leaves_all_failures_to_the_other():
    ranks = Ranks(1, AUTO, AUTO)
    ranks.each[0].learn(History(save_s={MEMORY: 0.02, STORAGE: 0.5}))
    ranks.clock.now_s += 0.1
    assert ranks.each[0].at_boundary(1, memory=False)
    reasons = {one.tier: one.reason for one in ranks.log if isinstance(one, IntervalChosen)}
    assert reasons[MEMORY] == "no save was measured yet"
    assert reasons[STORAGE].startswith("60 s is best: a save blocks 0.5 s, a failure in 3600 s")


def test_a_job_that_becomes_slow_is_within_its_bound_again_after_a_thousand_steps():
    ranks = Ranks(1, Auto(Steps(1), Seconds(60.0)))
    ranks.each[0].learn(History())
    ranks.each[0].saved(STORAGE, 0.5)
    for number in range(1, 40_001):
        ranks.step(number, 0.001)
    assert ranks.each[0].every(STORAGE) > 50_000
    for number in range(40_001, 41_002):
        ranks.step(number, 1.0)
    assert ranks.each[0].every(STORAGE) == 60


def test_only_the_last_words_are_kept():
    ranks = Ranks(1, AUTO)
    for number in range(1, 300):
        ranks.step(number, 10.0)
    words = [msgspec.json.decode(ranks.store.get(f"c/word/{n}"), type=Word) for n in (298, 199)]
    assert [word.next_step for word in words] == [300, 201]
    assert ranks.store.num_keys() == 100


def test_what_a_save_blocks_is_heard_on_the_way_to_the_log():
    class Log:
        def __init__(self) -> None:
            self.events: list[Event] = []

        def write(self, event: Event) -> None:
            self.events.append(event)

    log, saved = Log(), []
    overheard = Overheard(log, lambda tier, s, rest: saved.append((tier, s >= 0, rest)))
    told = [SaveStarted(3, STORAGE), SaveUnblocked(3, STORAGE), SaveUnblocked(4, STORAGE)]
    told += [SaveStarted(3, STORAGE, rest=True), SaveUnblocked(3, STORAGE)]
    for event in told:
        overheard.write(event)
    assert (log.events, saved) == (told, [(STORAGE, True, False), (STORAGE, True, True)])


def test_the_rest_of_an_overlapped_copy_is_a_part_of_its_cost():
    ranks = Ranks(1, AUTO)
    ranks.each[0].learn(History())
    ranks.each[0].saved(STORAGE, 0.1)
    ranks.each[0].saved(STORAGE, 0.4, rest=True)
    ranks.step(1, 0.6)
    (chosen,) = ranks.log
    assert isinstance(chosen, IntervalChosen)
    assert (chosen.inputs["save_s"], round(chosen.inputs["step_s"], 9)) == (0.5, 0.1)


# ── what the log says ───────────────────────────────────────────────────────────────────────────

CHOSEN = IntervalChosen(STORAGE, 40, 20.0, 24.5, {"step_s": 0.5}, "24.5 s is best")
SECOND = 1_000_000_000


def story() -> Account:
    """A save, a choice, a kill, and the way back from storage."""
    events: list[tuple[float, int, Event]] = [
        (0, 0, RunStarted("r", 1)),
        (0, 1, AttemptStarted(1)),
        (1, 1, RestoreStarted()),
        (1, 1, TrainingResumed(0, None)),
        (2, 1, StepFinished(1, 0, 1)),
        (2, 1, SaveStarted(1, STORAGE)),
        (2.5, 1, SaveUnblocked(1, STORAGE)),
        (3, 1, CHOSEN),
        (4.5, 1, StepFinished(2, 1, 2)),
        (5, 1, FailureDetected(0, Cause.SIGNAL, "SIGKILL")),
        (5, 2, AttemptStarted(1)),
        (6, 2, RestoreStarted()),
        (8, 2, TrainingResumed(1, STORAGE, 1)),
        (9, 2, StepFinished(2, 1, 2)),
    ]
    return timeline(
        [
            Entry(int(at_s * SECOND), attempt, number, event, "rank-0")
            for number, (at_s, attempt, event) in enumerate(events)
        ]
    ).account


def test_the_log_says_what_choices_rest_on():
    assert history.of(story()) == History(
        failures=1,
        up_s=3.0,
        returns={STORAGE: 1},
        restart_s={STORAGE: 4.5},
        save_s={STORAGE: 0.5},
        steps={STORAGE: 40},
    )


def test_the_log_says_of_an_overlapped_save_what_was_heard_of_it_live():
    events: list[tuple[float, int, Event]] = [
        *start(),
        (9, 1, SaveStarted(1, STORAGE)),
        (9.125, 1, SaveUnblocked(1, STORAGE)),
        (10, 1, SaveStarted(1, STORAGE, rest=True)),
        (10.375, 1, SaveUnblocked(1, STORAGE)),
        (11, 1, StepFinished(2, 1, 2)),
        (12, 1, SaveCommitted(1, STORAGE, 8)),
    ]
    of_the_log = history.of(timeline(log(*events)).account).save_s
    ranks = Ranks(1, AUTO)
    ranks.each[0].learn(History())
    ranks.each[0].saved(STORAGE, 0.125)
    ranks.each[0].saved(STORAGE, 0.375, rest=True)
    ranks.step(1, 0.6)
    (chosen,) = ranks.log
    assert isinstance(chosen, IntervalChosen)
    assert of_the_log == {STORAGE: chosen.inputs["save_s"]} == {STORAGE: 0.5}


def test_a_run_without_a_log_has_no_history(tmp_path):
    run_dir = RunDir.at(tmp_path)
    assert history.read(run_dir) == History()
    run_dir.create()
    recorder = Recorder(run_dir, "r", "rank-0", 1)
    recorder.write(RunStarted("r", 1))
    recorder.write(CHOSEN)
    recorder.close()
    assert history.read(run_dir).steps == {STORAGE: 40}
