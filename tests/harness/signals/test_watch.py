"""What a rank's watching takes is told apart from the rank's own time."""

from pathlib import Path

import pytest
import torch

from harness.components import Protected
from harness.observed import Observed
from harness.pace import Pace
from harness.rundir import RunDir
from harness.settings import Settings
from harness.signals.passage import Place
from harness.signals.watch import Watch
from harness.voice import Voice


class Watched:
    """A model that is trained alone, under all eyes."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        run_dir = RunDir.at(folder)
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
