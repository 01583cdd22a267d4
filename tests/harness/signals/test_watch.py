"""All eyes together: what their looking takes, and what they let be saved."""

from pathlib import Path

import pytest
import torch

from harness.components import Protected
from harness.events import Event, LossSpiked, NonfiniteFound, Reaction, Tier
from harness.events import Place as Where
from harness.journal import read
from harness.observed import Observed
from harness.pace import Pace
from harness.rundir import RunDir
from harness.settings import Settings
from harness.signals.passage import Place
from harness.signals.rollback import Note, Rollback, before
from harness.signals.rollback import read as noted
from harness.signals.unsound import NonfiniteError, SpikeError
from harness.signals.watch import Watch
from harness.voice import Voice


class Watched:
    """A model that is trained alone, under all eyes."""

    def __init__(self, folder: Path, settings: Settings, resumed: int = 0) -> None:
        self.run_dir = run_dir = RunDir.at(folder)
        run_dir.create()
        self.pace, self.observed = Pace(), Observed(late=False)
        self.model = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        protected = Protected()
        protected.add(model=self.model, optimizer=self.optimizer)
        voice = Voice(run_dir, "run", 0, 1)
        self.forgotten: list[bool] = []
        self.watch = Watch(
            voice,
            self.observed,
            self.pace,
            protected,
            settings,
            0,
            1,
            Rollback(run_dir, 2),
            late=False,
            forget_copies=lambda: self.forgotten.append(True),
        )
        self.pace.watch(self.model)
        self.pace.watch_optimizer(self.optimizer)
        self.watch.watch_optimizer(self.optimizer)
        self.watch.start(resumed)

    def step(self, number: int) -> list[Place]:
        """Where the step went."""
        self.watch.begin(number)
        self.pace.start()
        self.model(torch.ones(1, 3)).sum().backward()
        self.optimizer.step()
        self.watch.finish(number, last=False)
        self.pace.stop()
        self.observed.take(number)
        return self.pace._host._places

    def told(self) -> list[Event]:
        return [entry.event for entry in read(self.run_dir)]


@pytest.mark.parametrize("every", [2, 0])
def test_what_is_read_around_an_update_and_told_after_a_step_is_no_rank_s_own_time(
    tmp_path: Path, every: int
):
    watched = Watched(tmp_path, Settings(health_every_steps=every))
    trained = [Place.START, Place.GRADIENT, Place.UPDATING, Place.UPDATED, Place.ASIDE, Place.END]
    assert watched.step(1) == trained
    read = [
        *(Place.START, Place.GRADIENT, Place.UPDATING, Place.ASIDE, Place.UPDATING),
        *(Place.UPDATED, Place.ASIDE, Place.UPDATED, Place.ASIDE, Place.END),
    ]
    assert watched.step(2) == (read if every else trained)
    assert watched.step(3) == trained


def of_zero_by_zero(watched: Watched) -> None:
    """A step whose gradient is finite: Adam divides by its root, and nothing keeps that from zero."""
    watched.model.weight.grad = torch.zeros(2, 3)
    watched.optimizer.param_groups[0].update(eps=0.0, weight_decay=0.0)
    watched.watch.begin(7)
    watched.optimizer.step()
    watched.watch.finish(7, last=False)


@pytest.mark.parametrize("reaction", ["fail", "skip"])
def test_weights_that_an_optimizer_spoils_by_itself_are_not_saved(tmp_path: Path, reaction: str):
    watched = Watched(tmp_path, Settings(on_nonfinite=reaction, health_every_steps=0))
    watched.watch.vouch(Tier.STORAGE)
    of_zero_by_zero(watched)
    assert watched.told() == []
    with pytest.raises(
        NonfiniteError, match="the weights after step 7 are not finite, and not sav"
    ):
        watched.watch.vouch(Tier.STORAGE)
    assert watched.told() == [NonfiniteFound(7, Where.WEIGHTS, Reaction.FAIL)]
    assert watched.forgotten == [True]


def test_what_is_copied_to_memory_every_second_is_not_read_through_for_it(tmp_path: Path):
    watched = Watched(tmp_path, Settings(health_every_steps=0))
    of_zero_by_zero(watched)
    watched.watch.vouch(Tier.MEMORY)
    assert watched.told() == []


def test_copies_of_weights_that_are_spoilt_are_forgotten_before_that_ends_the_attempt(
    tmp_path: Path,
):
    watched = Watched(tmp_path, Settings(health_every_steps=0))
    of_zero_by_zero(watched)
    assert watched.forgotten == []
    watched.observed.add(float("nan"), 0)
    with pytest.raises(NonfiniteError):
        watched.step(8)
    assert watched.forgotten == [True]


def test_copies_of_sound_weights_stay_when_a_loss_ends_the_attempt(tmp_path: Path):
    watched = Watched(tmp_path, Settings(health_every_steps=0))
    watched.observed.add(float("nan"), 0)
    with pytest.raises(NonfiniteError):
        watched.step(1)
    assert watched.forgotten == []


def test_copies_stay_where_one_only_wants_to_hear_of_it(tmp_path: Path):
    watched = Watched(tmp_path, Settings(on_nonfinite="report", health_every_steps=0))
    of_zero_by_zero(watched)
    watched.observed.add(float("nan"), 0)
    watched.step(8)
    assert watched.forgotten == []


def test_spoilt_weights_are_saved_by_those_who_only_want_to_hear_of_it(tmp_path: Path):
    watched = Watched(tmp_path, Settings(on_nonfinite="report", health_every_steps=0))
    of_zero_by_zero(watched)
    watched.watch.vouch(Tier.STORAGE)
    assert watched.told() == [NonfiniteFound(7, Where.WEIGHTS, Reaction.REPORT)]


def test_what_is_frozen_may_hold_what_it_likes(tmp_path: Path):
    watched = Watched(tmp_path, Settings())
    watched.model.register_parameter("mask", torch.nn.Parameter(torch.tensor(-torch.inf), False))
    watched.watch.vouch(Tier.STORAGE)


# ── a loss that jumps ───────────────────────────────────────────────────────────────────────────

ROLLBACK = Settings(on_spike="rollback", health_every_steps=0)


def losses(watched: Watched, steps: range, jump: int) -> None:
    """Observe a loss in each of `steps`; from `jump` on it is another one."""
    for number in steps:
        watched.watch.begin(number)
        watched.observed.add(9.0 if number >= jump else 2.0 + number % 3 / 8, 1)
        watched.watch.finish(number, last=False)
        watched.observed.take(number)


def test_a_spike_that_is_to_be_gone_back_from_ends_the_attempt_and_says_how_far(tmp_path: Path):
    watched = Watched(tmp_path, ROLLBACK)
    with pytest.raises(SpikeError, match="the loss of step 71 is 9 after a median"):
        losses(watched, range(1, 80), jump=70)
    (told,) = watched.told()
    assert isinstance(told, LossSpiked)
    assert told.step == 71
    note = noted(watched.run_dir)
    assert note == Note(2, 69, [2.0 + number % 3 / 8 for number in range(1, 70)])
    # The loss of step 70 is that of the weights after 69 updates, the last of which may be the cause.
    assert before(watched.run_dir, {1, 2}) == 68


def test_a_note_holds_until_another_attempt_has_chosen_its_state(tmp_path: Path):
    run_dir = RunDir.at(tmp_path)
    assert before(run_dir, {1, 2}) is None
    run_dir.rollback.write_text('{"attempt": 2, "last": 1}')
    assert [before(run_dir, departed) for departed in ({1, 2}, {1, 2, 3}, {1}, ())] == [
        *(0, None, None, None)
    ]


@pytest.mark.parametrize("left", ["", "{", '{"attempt": "2", "last": 1}', '{"attempt": 2}'])
def test_a_note_that_makes_no_sense_is_none(tmp_path: Path, left: str):
    run_dir = RunDir.at(tmp_path)
    run_dir.rollback.write_text(left)
    assert (noted(run_dir), before(run_dir, {2})) == (None, None)
    assert Rollback(run_dir, 3).losses(5) == ()


def test_what_was_usual_before_a_spike_is_known_to_the_attempt_that_does_those_steps_again(
    tmp_path: Path,
):
    run_dir = RunDir.at(tmp_path)
    run_dir.rollback.write_text('{"attempt": 1, "last": 69, "losses": [0.5, 0.25, 0.125]}')
    assert Rollback(run_dir, 2).losses(69) == [0.5, 0.25, 0.125]
    assert Rollback(run_dir, 2).losses(67) == [0.5]
    assert Rollback(run_dir, 2).losses(30) == []
    assert Rollback(run_dir, 2).losses(70) == ()  # these steps are past it
    assert Rollback(run_dir, 1).losses(67) == ()  # this attempt has written it


def test_a_spike_that_comes_again_soon_after_a_resume_is_seen_again(tmp_path: Path):
    with pytest.raises(SpikeError):
        losses(Watched(tmp_path, ROLLBACK), range(1, 80), jump=70)
    note = tmp_path / "rollback.json"
    note.write_text(note.read_text().replace('"attempt":2', '"attempt":1'))
    with pytest.raises(SpikeError, match="the loss of step 71"):
        losses(Watched(tmp_path, ROLLBACK, resumed=68), range(69, 80), jump=70)


def test_a_spike_is_told_and_training_goes_on_where_nobody_asks_for_more(tmp_path: Path):
    watched = Watched(tmp_path, Settings(health_every_steps=0))
    losses(watched, range(1, 80), jump=70)
    assert [type(event) for event in watched.told()] == [LossSpiked]
    assert noted(watched.run_dir) is None
