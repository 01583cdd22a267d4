"""Gradient norms, clipping and updates as a rank sees them, on a real model and optimizer."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from harness.digest import digest
from harness.events import Event, HealthObserved, LossSpiked, NonfiniteFound, Place, Reaction
from harness.journal import read
from harness.observed import Observed
from harness.optimizer import Names
from harness.rundir import RunDir
from harness.settings import Settings
from harness.signals.health import Health
from harness.signals.unsound import NonfiniteError, NonfiniteGradientError
from harness.voice import Voice

EVERY = Settings(health_every_steps=1)


class Trained:
    """A model of two blocks, trained alone; `late` as on an accelerator."""

    def __init__(
        self,
        folder: Path,
        settings: Settings = EVERY,
        late: bool = False,
        fused: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        torch.manual_seed(1)
        self.run_dir = RunDir.at(folder)
        self.run_dir.create()
        self.observed = Observed(late)
        self.voice = Voice(self.run_dir, "run", 0, 1)
        self.health = Health(self.voice, self.observed, settings, late, 1)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)).to(dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1, fused=fused or None)
        self.health.watch_optimizer(self.optimizer)
        names: Names = {p: f"model.{name}" for name, p in self.model.named_parameters()}
        self.health.name(names)

    def step(self, number: int, scale: float = 1.0, line: float | None = 1.0) -> None:
        self.health.begin(number)
        inputs = torch.arange(6, dtype=torch.float32).reshape(2, 3) * number
        loss = self.model(inputs.to(self.weight.dtype)).abs().square().mean() * scale
        loss.backward()
        self.observed.add(loss, 2)
        if line is not None:
            self.health.clip(self.model.parameters(), line)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.health.finish(number, last=False)
        self.observed.take(number)

    @property
    def weight(self) -> torch.Tensor:
        return next(self.model.parameters())

    def told(self) -> list[Event]:
        return [entry.event for entry in read(self.run_dir)]

    def state(self) -> str:
        return digest([self.model.state_dict(), self.optimizer.state_dict()])


def by_hand(steps: int) -> tuple[list[float], list[dict[str, float]], str]:
    """The same training without anything of ours: norms, ratios and the state in the end."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    norms, ratios = [], []
    for number in range(1, steps + 1):
        before = [p.detach().clone() for p in model.parameters()]
        inputs = torch.arange(6, dtype=torch.float32).reshape(2, 3) * number
        model(inputs).square().mean().backward()
        norms.append(float(clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        optimizer.zero_grad()
        after = [p.detach() for p in model.parameters()]
        moved = [float((b - a).square().sum()) for a, b in zip(after, before, strict=True)]
        weights = [float(a.square().sum()) for a in after]
        parts = {"all": range(4), "model.0": (0, 1), "model.1": (2, 3), "model.1.bias": (3,)}
        ratios.append(
            {
                name: math.sqrt(sum(moved[p] for p in places) / sum(weights[p] for p in places))
                for name, places in parts.items()
            }
        )
    return norms, ratios, digest([model.state_dict(), optimizer.state_dict()])


def test_a_watched_run_is_the_unwatched_one_bit_for_bit_and_its_figures_are_right(tmp_path):
    watched = Trained(tmp_path, replace(EVERY, watch_tensors="model.1.bias"))
    for number in (1, 2, 3):
        watched.step(number)
    norms, ratios, state = by_hand(3)
    assert watched.state() == state
    told = watched.told()
    assert [event.step for event in told if isinstance(event, HealthObserved)] == [1, 2, 3]
    for event, norm, by_group in zip(told, norms, ratios, strict=True):
        assert isinstance(event, HealthObserved)
        assert event.grad_norm == pytest.approx(norm)
        assert event.update_to_weight == pytest.approx(by_group, rel=1e-5)
        assert (event.clip_norm, event.clips, event.clipped) == (1.0, 1, norm > 1.0)


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_models_of_other_numbers_are_watched_too(tmp_path, dtype):
    watched = Trained(tmp_path, dtype=dtype)
    watched.step(1)
    (event,) = watched.told()
    assert isinstance(event, HealthObserved)
    assert event.grad_norm is not None
    assert list(event.update_to_weight) == ["all", "model.0", "model.1"]
    assert all(0 < ratio < math.inf for ratio in event.update_to_weight.values())


def test_clips_are_counted_over_all_steps_between_two_readings(tmp_path):
    watched = Trained(tmp_path, Settings(health_every_steps=4))
    for number in range(1, 9):
        watched.step(number, line=1e9 if number in (2, 6, 7) else 1e-9)
    first, second = watched.told()
    assert isinstance(first, HealthObserved)
    assert isinstance(second, HealthObserved)
    assert (first.step, first.clips, first.clipped) == (4, 4, 3)
    assert (second.step, second.clips, second.clipped) == (8, 4, 2)


def test_on_an_accelerator_a_reading_comes_one_step_late_and_the_last_is_not_lost(tmp_path):
    watched = Trained(tmp_path, late=True)
    watched.step(1)
    assert watched.told() == []
    watched.step(2)
    watched.health.settle()
    assert [event.step for event in watched.told() if isinstance(event, HealthObserved)] == [1, 2]


def test_a_gradient_that_is_clipped_elsewhere_is_told_as_the_optimizer_gets_it(tmp_path):
    watched = Trained(tmp_path)
    watched.step(1, line=None)
    (event,) = watched.told()
    assert isinstance(event, HealthObserved)
    assert event.grad_norm is not None
    assert (event.clip_norm, event.clips, event.clipped) == (None, 0, 0)


@pytest.mark.parametrize("line", [1.0, None])
def test_what_is_not_finite_ends_the_attempt_before_the_optimizer_steps(tmp_path, line):
    watched = Trained(tmp_path)
    before = watched.state()
    with pytest.raises(NonfiniteError, match="the loss of step 7 is not finite"):
        watched.step(7, scale=math.nan, line=line)
    assert watched.state() == before
    assert watched.told() == [
        NonfiniteFound(7, Place.LOSS, Reaction.FAIL),
        NonfiniteFound(7, Place.GRADIENT, Reaction.FAIL),
    ]


def test_a_gradient_alone_that_is_not_finite_is_another_rank_s_perhaps(tmp_path):
    watched = Trained(tmp_path)
    watched.weight.register_hook(lambda gradient: gradient * math.inf)  # type: ignore[no-untyped-call]
    with pytest.raises(NonfiniteGradientError, match="the gradient of step 1 is not finite"):
        watched.step(1)


def test_a_step_that_is_skipped_leaves_weights_and_moments_and_the_next_one_is_taken(tmp_path):
    watched = Trained(tmp_path, Settings(on_nonfinite="skip", health_every_steps=0))
    watched.step(1)
    before = watched.state()
    watched.step(2, scale=math.nan)
    assert watched.state() == before
    watched.step(3)
    assert watched.state() != before
    assert watched.told() == [
        NonfiniteFound(2, Place.LOSS, Reaction.SKIP),
        NonfiniteFound(2, Place.GRADIENT, Reaction.SKIP),
    ]


def test_what_is_only_reported_is_told_and_training_goes_on(tmp_path):
    watched = Trained(tmp_path, Settings(on_nonfinite="report", health_every_steps=0), late=True)
    watched.step(1, scale=math.nan)
    watched.step(2)
    assert [event.step for event in watched.told() if isinstance(event, NonfiniteFound)] == [1, 1]
    assert math.isnan(watched.weight[0, 0].item())


def test_on_an_accelerator_no_save_comes_before_what_ends_the_attempt(tmp_path):
    watched = Trained(tmp_path, late=True)
    watched.step(1, scale=math.nan)  # not read yet, and a save is due
    with pytest.raises(NonfiniteError, match="the loss of step 1 is not finite"):
        watched.health.settle()


def test_a_loss_that_is_observed_after_the_optimizer_s_step_is_found_all_the_same(tmp_path):
    watched = Trained(tmp_path)
    watched.step(1)
    watched.health.begin(2)
    watched.optimizer.step()
    watched.observed.add(math.inf, 1)
    with pytest.raises(NonfiniteError, match="the loss of step 2 is not finite"):
        watched.health.finish(2, last=False)


def test_infinities_that_a_scaler_skips_are_its_own_affair(tmp_path):
    watched = Trained(tmp_path, fused=True)
    # As GradScaler does, which leaves it to the kernel not to step.
    watched.optimizer.grad_scale = torch.ones(())  # type: ignore[attr-defined]
    watched.optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
    watched.weight.register_hook(lambda gradient: gradient * math.inf)  # type: ignore[no-untyped-call]
    watched.step(1)
    assert [type(event) for event in watched.told()] == [HealthObserved]


def test_a_tensor_that_is_no_parameter_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"no parameter is called model\.2\.bias; known: model\.0\.w"
    ):
        Trained(tmp_path, replace(EVERY, watch_tensors="model.2.bias"))


def test_a_loss_that_jumps_and_stays_there_is_told_once(tmp_path):
    watched = Trained(tmp_path, Settings(health_every_steps=0))
    for number in range(1, 80):
        watched.health.begin(number)
        watched.observed.add(9.0 if 60 <= number < 65 else 2.0 + number % 3 / 10, 1)
        watched.health.finish(number, last=False)
        watched.observed.take(number)
    (spike,) = watched.told()
    assert isinstance(spike, LossSpiked)
    assert (spike.step, spike.loss) == (61, 9.0)
