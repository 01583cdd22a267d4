"""All eyes together: what their looking takes, and what they let be saved."""

from pathlib import Path

import pytest
import torch

from harness.components import Protected
from harness.events import Event, NonfiniteFound, Reaction
from harness.events import Place as Where
from harness.journal import read
from harness.observed import Observed
from harness.pace import Pace
from harness.rundir import RunDir
from harness.settings import Settings
from harness.signals.passage import Place
from harness.signals.unsound import NonfiniteError
from harness.signals.watch import Watch
from harness.voice import Voice


class Watched:
    """A model that is trained alone, under all eyes."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.run_dir = run_dir = RunDir.at(folder)
        run_dir.create()
        self.pace, self.observed = Pace(), Observed(late=False)
        self.model = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        protected = Protected()
        protected.add(model=self.model, optimizer=self.optimizer)
        voice = Voice(run_dir, "run", 0, 1)
        self.watch = Watch(voice, self.observed, self.pace, protected, settings, 0, 1, late=False)
        self.pace.watch(self.model)
        self.pace.watch_optimizer(self.optimizer)
        self.watch.watch_optimizer(self.optimizer)
        self.watch.start()

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
    watched.watch.vouch()
    of_zero_by_zero(watched)
    assert watched.told() == []
    with pytest.raises(
        NonfiniteError, match="the weights after step 7 are not finite, and not sav"
    ):
        watched.watch.vouch()
    assert watched.told() == [NonfiniteFound(7, Where.WEIGHTS, Reaction.FAIL)]


def test_spoilt_weights_are_saved_by_those_who_only_want_to_hear_of_it(tmp_path: Path):
    watched = Watched(tmp_path, Settings(on_nonfinite="report", health_every_steps=0))
    of_zero_by_zero(watched)
    watched.watch.vouch()
    assert watched.told() == [NonfiniteFound(7, Where.WEIGHTS, Reaction.REPORT)]


def test_what_is_frozen_may_hold_what_it_likes(tmp_path: Path):
    watched = Watched(tmp_path, Settings())
    watched.model.register_parameter("mask", torch.nn.Parameter(torch.tensor(-torch.inf), False))
    watched.watch.vouch()
