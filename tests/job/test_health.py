"""Real ranks whose training goes wrong in its numbers, and not in its processes."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from harness.events import (
    ArithmeticKnown,
    Cause,
    Entry,
    Event,
    FailureDetected,
    GradientsAudited,
    HealthObserved,
    LossSpiked,
    NonfiniteFound,
    Place,
    Reaction,
    ReplicasCompared,
    RunFinished,
    SaveCommitted,
    StateDigested,
    StepTimed,
    Tier,
    TrainingResumed,
)
from harness.journal import read
from harness.rundir import RunDir
from tests.zygote import Zygote

pytestmark = pytest.mark.processes

LOOP = """
import torch
from torch.utils.data import DataLoader
import harness

job = harness.join(seed=1, health_every_steps=2, save_every_steps=2{settings})
data = torch.rand(48, 4)
torch.manual_seed(1)
sampler = harness.ResumableSampler(len(data), 12)
layers = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 1)
model = job.ddp(torch.nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
job.protect(model=model, optimizer=optimizer, data=sampler)
batches = job.batches(DataLoader(data, batch_sampler=sampler))
loss_of = job.audited(model, lambda model, batch: model(batch).square().mean())
{before}
for step in job.steps(6):
    loss = loss_of(next(batches))
    {inside}
    loss.backward()
    job.observe(loss=loss)
    job.clip(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def loop(zygote: Zygote, tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Runs `LOOP`, and gives the exit code."""

    def run(ranks: int, settings: str = "", before: str = "", inside: str = "pass") -> int:
        script = tmp_path / "loop.py"
        script.write_text(LOOP.format(settings=settings, before=before, inside=inside))
        flags = ("--run", "run", "--nproc-per-node", str(ranks), "--max-restarts", "3")
        return zygote.launch(["run", *flags, "--no-metrics", script], tmp_path).wait(120)

    yield run
    zygote.kill_all()


def log(folder: Path) -> list[Entry]:
    return read(RunDir.at(folder / "run"))


def told(folder: Path, kind: type[Event]) -> list[tuple[str, Event]]:
    return [(it.writer, it.event) for it in log(folder) if isinstance(it.event, kind)]


def ends(folder: Path, ranks: int) -> dict[str, Mapping[str, str]]:
    """Digests of everything after the last step, by rank."""
    last = dict(told(folder, StateDigested))
    assert sorted(last) == [f"rank-{rank}" for rank in range(ranks)]
    return {who: it.components for who, it in last.items() if isinstance(it, StateDigested)}


def models(end: dict[str, Mapping[str, str]]) -> set[str]:
    return {components["model"] for components in end.values()}


def test_a_loss_that_is_no_number_ends_the_attempt_by_its_rank_and_the_run_goes_on(loop, tmp_path):
    once = "if (job.rank, job.attempt, step) == (1, 1, 4): loss = loss * float('nan')"
    assert loop(2, inside=once) == 0
    ((_, failure),) = told(tmp_path, FailureDetected)
    assert isinstance(failure, FailureDetected)
    assert (failure.rank, failure.cause) == (1, Cause.NONFINITE)
    assert "the loss of step 4 is not finite" in failure.reason
    assert sorted(told(tmp_path, NonfiniteFound), key=str) == [
        ("rank-0", NonfiniteFound(4, Place.GRADIENT, Reaction.FAIL)),
        ("rank-1", NonfiniteFound(4, Place.LOSS, Reaction.FAIL)),
    ]
    resumed = [
        it.step for _, it in told(tmp_path, TrainingResumed) if isinstance(it, TrainingResumed)
    ]
    assert resumed in ([0, 0], [0, 2])  # the save after step 2 may have been under way
    assert len(models(ends(tmp_path, 2))) == 1


def test_weights_that_an_optimizer_spoils_are_gone_on_from_in_the_storage(loop, tmp_path):
    spoils = """
import time
def spoil(*_):
    if sampler.position == 4 * 12:
        time.sleep(1.5)  # what was handed over after step 2 becomes durable meanwhile
    if job.attempt == 1 and sampler.position == 5 * 12:
        model.module[3].weight.data.fill_(float("nan"))
optimizer.register_step_post_hook(spoil)
"""
    assert loop(2, settings=", memory_every='1 steps'", before=spoils) == 0
    ((_, failure),) = told(tmp_path, FailureDetected)
    assert isinstance(failure, FailureDetected)
    assert failure.cause == Cause.NONFINITE
    kept = [it for _, it in told(tmp_path, SaveCommitted) if isinstance(it, SaveCommitted)]
    assert (5, Tier.MEMORY) in [(it.step, it.tier) for it in kept], "it was copied"
    _, resumed = (it for _, it in told(tmp_path, TrainingResumed))
    assert isinstance(resumed, TrainingResumed)
    assert (resumed.step, resumed.tier) in ((2, Tier.STORAGE), (4, Tier.STORAGE))
    assert len(models(ends(tmp_path, 2))) == 1


@pytest.fixture(scope="module")
def undisturbed(
    zygote: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Mapping[str, str]]:
    """The end of the run of three ranks to which nothing happens and at which nobody looks."""
    folder = tmp_path_factory.mktemp("undisturbed")
    script = folder / "loop.py"
    settings = ", replicas_every_steps=0"
    script.write_text(LOOP.format(settings=settings, before="", inside="pass"))
    flags = ("--run", "run", "--nproc-per-node", "3", "--no-metrics")
    assert zygote.launch(["run", *flags, script], folder).wait(120) == 0
    return ends(folder, 3)


def test_a_bit_that_flips_in_a_weight_is_found_named_and_undone(loop, tmp_path, undisturbed):
    once = (
        "if (job.rank, job.attempt, step) == (2, 1, 4):"
        " model.module[3].weight.data.view(torch.int32)[0, 3] ^= 1 << 12"
    )
    settings = ", replicas_every_steps=2, on_replica_mismatch='fail'"
    assert loop(3, settings=settings, inside=once) == 0
    ((_, failure),) = told(tmp_path, FailureDetected)
    assert isinstance(failure, FailureDetected)
    assert (failure.rank, failure.cause) == (2, Cause.CORRUPTION)
    assert (
        "the weights of rank 2 after step 4 are not those of the others: model.3" in failure.reason
    )
    differed = [
        it for _, it in told(tmp_path, ReplicasCompared) if isinstance(it, ReplicasCompared)
    ]
    assert [(it.step, it.groups, it.ranks) for it in differed if it.groups] == [
        (4, ["model.3"], [2])
    ]
    assert ends(tmp_path, 3) == undisturbed


VOUCH = """if (job.attempt, step) == (1, 4):
        if job.rank == 1: model.module[0].bias.data.view(torch.int32)[2] ^= 1
        job._watch.vouch(harness.events.Tier.STORAGE)"""


def test_two_replicas_that_differ_are_not_saved_and_nobody_is_named(loop, tmp_path):
    settings = ", replicas_every_steps=100, on_replica_mismatch='fail'"
    assert loop(2, settings=settings, inside=VOUCH) == 0
    ((_, failure),) = told(tmp_path, FailureDetected)
    assert isinstance(failure, FailureDetected)
    assert failure.cause is Cause.CORRUPTION
    assert "after step 3 in model.0, and no majority of ranks says which" in failure.reason
    assert len(models(ends(tmp_path, 2))) == 1


def test_all_ranks_skip_a_step_of_which_one_alone_knows(loop, tmp_path):
    own = "if (job.rank, step) == (1, 3): job.observe(loss=float('inf'))"
    assert loop(2, settings=", on_nonfinite='skip'", inside=own) == 0
    assert told(tmp_path, NonfiniteFound) == [
        ("rank-1", NonfiniteFound(3, Place.LOSS, Reaction.SKIP))
    ]
    assert len(models(ends(tmp_path, 2))) == 1
    observed = [it for _, it in told(tmp_path, HealthObserved) if isinstance(it, HealthObserved)]
    assert [(it.step, it.clips) for it in observed] == [(2, 2), (4, 2), (6, 2)]
    assert list(observed[0].update_to_weight) == ["all", "model.0", "model.1", "model.3"]


FLIP = """
hit = []
def flip(gradient):
    if hit:
        gradient = gradient.clone()
        gradient.view(torch.int32)[0, 1] ^= 1 << 20
        {afterwards}
    return gradient
model.module[0].weight.register_hook(flip)
"""
HIT = "hit[:] = [1] if (job.rank, job.attempt, step) == (1, 1, 4) else []"


def audits(folder: Path) -> list[tuple[int, list[str], list[int]]]:
    events = [it for _, it in told(folder, GradientsAudited) if isinstance(it, GradientsAudited)]
    return [(it.step, list(it.groups), list(it.ranks)) for it in events]


def test_a_bit_that_flips_in_a_gradient_is_found_before_it_is_kept_and_undone(
    loop, tmp_path, undisturbed
):
    before = FLIP.format(afterwards="hit.clear()")
    assert loop(3, settings=", audit_every_steps=2", before=before, inside=HIT) == 0
    ((_, failure),) = told(tmp_path, FailureDetected)
    assert isinstance(failure, FailureDetected)
    assert (failure.rank, failure.cause) == (1, Cause.CORRUPTION)
    assert "rank 1 got another gradient in step 4 than others from its batch" in failure.reason
    assert (4, ["model.0"], [1]) in audits(tmp_path)
    assert ends(tmp_path, 3) == undisturbed


def test_replicas_that_a_flipped_gradient_makes_wrong_alike_show_nothing_without_an_audit(
    loop, tmp_path, undisturbed
):
    settings = ", audit_every_steps=2, on_audit_mismatch='report', replicas_every_steps=1"
    before = FLIP.format(afterwards="pass")
    assert loop(3, settings=settings, before=before, inside=HIT) == 0
    assert audits(tmp_path) == [(2, [], []), (4, ["model.0"], [1]), (6, [], [])]
    compared = [
        it for _, it in told(tmp_path, ReplicasCompared) if isinstance(it, ReplicasCompared)
    ]
    assert [(it.step, list(it.groups)) for it in compared] == [(step, []) for step in range(1, 7)]
    end = ends(tmp_path, 3)
    assert len(models(end)) == 1
    assert models(end) != models(undisturbed)
    streams = {who: components["rng"] for who, components in undisturbed.items()}
    assert {who: components["rng"] for who, components in end.items()} == streams


def test_operations_are_counted_and_times_told_and_no_bit_is_another(loop, tmp_path, undisturbed):
    counted = "job.count_flops(lambda: model(torch.zeros(4, 4)).square().mean(), tokens=4)"
    assert loop(3, settings=", replicas_every_steps=0", before=counted) == 0
    assert ends(tmp_path, 3) == undisturbed
    ((who, known),) = told(tmp_path, ArithmeticKnown)
    assert isinstance(known, ArithmeticKnown)
    # Two linear layers of 32 and 8 weights forward and for their own gradients; biases and
    # a norm of 16 weights are in the formula alone, and the second layer's input has a gradient too.
    assert (who, known.counted_flops) == ("rank-0", 2 * 2 * (32 + 8) + 2 * 8)
    assert known.formula_flops == 6 * (32 + 8 + 16 + 8 + 1)
    assert known.peak_source == "a matrix product, measured"
    timed = [(who, it) for who, it in told(tmp_path, StepTimed) if isinstance(it, StepTimed)]
    for rank in range(3):
        mine = [it for who, it in timed if who == f"rank-{rank}"]
        assert sum(it.steps for it in mine) == 6
        assert (mine[0].step, mine[-1].step) == (1, 6)
        assert all(it.own_ns >= it.data_ns + it.compute_ns > 0 for it in mine)
        assert all(min(it.data_ns, it.compute_ns, it.wait_ns) > 0 for it in mine)


SPIKED = """
import time
from pathlib import Path
import torch
import harness

job = harness.join(seed=1, storage_every="1 steps", memory_every="off", on_spike="rollback")
torch.manual_seed(1)
model = job.ddp(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
job.protect(model=model, optimizer=optimizer)
jump = Path("jump")

def is_kept(step):
    until_s = time.monotonic() + 0.2
    while time.monotonic() < until_s:
        kept = {path.parent.name[:13] for path in job.run_dir.checkpoints.glob("step-*/commit.json")}
        if f"step-{step:08d}" in kept and len(kept) > 1:
            return True
    return False

for step in job.steps(1000):
    model(torch.ones(8, 4)).square().mean().backward()
    if job.rank == 0 and step > 60 and not jump.exists() and is_kept(step - 1):
        jump.write_text(str(step))
    jumped = jump.exists() and step >= int(jump.read_text() or step + 1)
    job.observe(loss=9.0 if jumped else 2.0 + step % 3 / 8)
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_spike_is_gone_back_from_and_one_that_comes_again_and_again_ends_the_run(
    zygote: Zygote, tmp_path: Path
):
    script = tmp_path / "loop.py"
    script.write_text(SPIKED)
    flags = ("--run", "run", "--nproc-per-node", "2", "--no-metrics")
    assert zygote.launch(["run", *flags, script], tmp_path).wait(120) == 1
    zygote.kill_all()
    jump = int((tmp_path / "jump").read_text())
    spikes = [it.step for _, it in told(tmp_path, LossSpiked) if isinstance(it, LossSpiked)]
    # The other rank may, or may not, end that step before it is ended itself: that is no progress twice.
    assert spikes in (3 * [jump + 1], 4 * [jump + 1])
    failures = [it for _, it in told(tmp_path, FailureDetected) if isinstance(it, FailureDetected)]
    assert [it.rank for it in failures] == len(spikes) * [0]
    assert f"a state of at most {jump - 2} steps is gone back to" in failures[0].reason
    saves = [it.step for _, it in told(tmp_path, SaveCommitted) if isinstance(it, SaveCommitted)]
    resumes = [
        it.step for _, it in told(tmp_path, TrainingResumed) if isinstance(it, TrainingResumed)
    ]
    # What the step before the jump made is there, and may be its cause.
    assert jump - 1 in saves
    assert [0 < step <= jump - 2 for step in resumes] == [False, *[True] * (len(spikes) - 1)]
    (end,) = [it for _, it in told(tmp_path, RunFinished) if isinstance(it, RunFinished)]
    assert "same step, no progress: 3 attempts ended after step" in end.reason
