"""What a loop gets wrong without noticing is refused, or said, before the first step."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.events import Event, StepFinished
from harness.journal import read
from harness.rundir import RunDir
from harness.timeline import timeline
from tests.zygote import Zygote

pytestmark = pytest.mark.processes

LOOP = """
import torch
from torch.utils.data import DataLoader
import harness

job = harness.join()
data = torch.ones(12, 1)
sampler = harness.ResumableSampler(len(data), 4)
model = job.ddp(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.protect(model=model, optimizer=optimizer{protected})
batches = job.batches({loader})
{before}
for step in job.steps(2):
    model(next(batches)).sum().backward()
    optimizer.step()
    {inside}
{after}
"""
SAMPLED, PLAIN = "DataLoader(data, batch_sampler=sampler)", "DataLoader(data)"


@pytest.fixture
def loop(zygote: Zygote, tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Runs `LOOP` on one rank, once, and gives the exit code."""

    def run(
        loader: str,
        *more: str,
        protected: str = "",
        before: str = "",
        inside: str = "",
        after: str = "",
    ) -> int:
        script = tmp_path / "loop.py"
        script.write_text(
            LOOP.format(
                loader=loader, protected=protected, before=before, inside=inside, after=after
            )
        )
        flags = ("--run", "run", "--nproc-per-node", "1", "--max-restarts", "0", *more)
        return zygote.launch(["run", *flags, "--no-metrics", script], tmp_path).wait()

    yield run
    zygote.kill_all()


def errors(folder: Path) -> str:
    return RunDir.at(folder / "run").log(1, 0, "err").read_text()


def logged(folder: Path) -> list[type[Event]]:
    return [type(entry.event) for entry in read(RunDir.at(folder / "run"))]


def test_a_sampler_that_nobody_protects_is_refused(loop, tmp_path):
    assert loop(SAMPLED) == 1
    assert "a ResumableSampler that is not protected" in errors(tmp_path)
    assert StepFinished not in logged(tmp_path)


def test_an_optimizer_that_steps_in_backward_is_not_overlapped_and_that_is_said_once(
    loop, tmp_path
):
    hook = "model.module.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())"
    flags = ("--overlap", "on", "--memory-every", "1 step")
    assert loop(SAMPLED, *flags, protected=", data=sampler", before=hook) == 0
    assert errors(tmp_path).splitlines() == [
        "harness: an optimizer steps in backward: from here on training stops for whole copies"
    ]


def test_an_optimizer_whose_step_is_compiled_trains_and_is_copied_beside(loop, tmp_path):
    compiled = "optimizer.step = torch.compile(optimizer.step, backend='eager')"
    flags = ("--overlap", "on", "--memory-every", "1 step")
    assert loop(SAMPLED, *flags, protected=", data=sampler", before=compiled) == 0
    assert "harness:" not in errors(tmp_path)


def test_a_protected_sampler_trains_without_a_word(loop, tmp_path):
    assert loop(SAMPLED, protected=", data=sampler") == 0
    assert "the place in the data" not in errors(tmp_path)


def test_a_loader_whose_place_nobody_keeps_is_said_once_and_trains(loop, tmp_path):
    assert loop(PLAIN) == 0
    assert errors(tmp_path).count("the place in the data is in no checkpoint") == 1


def test_an_evaluation_of_a_state_that_is_not_in_place_is_refused(loop, tmp_path):
    before = "with job.evaluating() as evaluation:\n    evaluation.loss = 1.0"
    assert loop(SAMPLED, protected=", data=sampler", before=before) == 1
    assert "evaluate inside the loop" in errors(tmp_path)


def test_what_is_scored_after_the_last_step_leaves_the_job_finished(loop, tmp_path):
    after = "with job.evaluating() as evaluation:\n    evaluation.loss = 1.5"
    assert loop(SAMPLED, protected=", data=sampler", after=after) == 0
    assert timeline(read(RunDir.at(tmp_path / "run"))).account.validations[-1].value == 1.5


def test_a_second_loop_is_refused(loop, tmp_path):
    after = "for step in job.steps(4):\n    raise SystemExit"
    assert loop(SAMPLED, protected=", data=sampler", after=after) == 0
    assert "make one loop" in errors(tmp_path)
    assert logged(tmp_path).count(StepFinished) == 2


def test_a_ddp_of_the_script_s_own_is_refused(loop, tmp_path):
    before = "job.protect(own=torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1)))"
    assert loop(SAMPLED, protected=", data=sampler", before=before) == 1
    assert "own is in a DDP whose order of reduction no resume repeats" in errors(tmp_path)


@pytest.mark.parametrize(
    ("before", "steps"),
    [
        ("torch.backends.cudnn.benchmark = True", 0),
        ("model.register_forward_hook(lambda *_: torch.set_num_threads(64))", 1),
    ],
)
def test_a_switch_that_is_changed_before_or_in_a_step_is_refused(loop, tmp_path, before, steps):
    assert loop(SAMPLED, protected=", data=sampler", before=before) == 1
    assert "exactness needs its switches:" in errors(tmp_path)
    assert logged(tmp_path).count(StepFinished) == steps


def test_nothing_is_saved_of_what_was_computed_under_other_switches(loop, tmp_path):
    fiddles = "torch.backends.cudnn.benchmark = step == 2"
    script = ("--memory-every", "off", "--storage-every", "1 steps")
    assert loop(SAMPLED, *script, protected=", data=sampler", inside=fiddles) == 1
    assert "cudnn.benchmark was False when the run started and is True now" in errors(tmp_path)
    assert not list((tmp_path / "run" / "checkpoints").glob("step-00000002-*"))


def test_a_loop_that_is_told_to_stop_ends_with_its_state_durable(tmp_path, loop):
    assert loop(SAMPLED, protected=", data=sampler", inside="job.stop()") == 0
    assert timeline(read(RunDir.at(tmp_path / "run"))).account.step == 1
    assert (tmp_path / "run" / "checkpoints" / "step-00000001-1" / "commit.json").exists()


def test_a_loop_that_is_left_says_how_to_end_it(tmp_path, loop):
    assert loop(SAMPLED, protected=", data=sampler", inside="break") == 1
    assert "the loop was left in step 1: end it by job.stop()" in errors(tmp_path)


def test_a_loop_that_an_exception_ends_is_told_nothing_else(tmp_path, loop):
    assert loop(SAMPLED, protected=", data=sampler", inside="raise KeyError(step)") == 1
    assert "KeyError: 1" in errors(tmp_path)
    assert "the loop was left" not in errors(tmp_path)
