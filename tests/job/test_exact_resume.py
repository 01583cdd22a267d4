"""A job that was killed ends as the job that was not: the proof that everything else rests on."""

import signal
from pathlib import Path

import pytest

from harness.events import StateDigested, StepFinished, Tier, TrainingResumed
from harness.journal import read
from harness.rundir import RunDir
from harness.verify import Judgement, verify
from tests.job.conftest import STEPS, STEPS_AN_EPOCH

pytestmark = pytest.mark.processes

# Attempt, rank and step of its process: each in the second epoch, wherever the saves let it begin.
KILLS = "1:{}:19,2:{}:5,3:{}:6"
TIERS = (
    (Tier.STORAGE, ("--memory-every", "off")),
    (Tier.MEMORY, ("--memory-every", "3 steps", "--save-every-steps", "0")),
)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_three_kills_in_one_epoch_change_no_bit(job, twin, ranks):
    kills = KILLS.format(ranks - 1, 0, ranks // 2)
    tier, every = TIERS[ranks > 2]
    least = STEPS_AN_EPOCH - 3  # the first step killed after that is in the second epoch
    committed = least if tier is Tier.STORAGE else 0
    assert job.run(ranks, *every, KILL=kills, COMMITTED=str(committed)) == 0

    verdict = verify(job.path, twin(ranks))
    assert (verdict.judgement, verdict.compared_steps) == (Judgement.EXACT, STEPS), verdict.detail
    resumed = [e.event for e in job.entries() if isinstance(e.event, TrainingResumed)]
    assert [event.tier for event in resumed] == [None, tier, tier, tier]
    assert resumed[0].step == 0
    assert all(least <= event.step < STEPS for event in resumed[1:])


def test_copies_beside_every_next_step_change_no_bit_and_are_resumed_from(job, twin):
    named = job.folder / "memory"
    named.mkdir()
    flags = ("--overlap", "on", "--memory-every", "1 step", "--save-every-steps", "5")
    assert job.run(2, *flags, "--memory-dir", str(named), KILL="1:1:19,2:0:5") == 0
    assert list(named.iterdir()) == []

    verdict = verify(job.path, twin(2))
    assert (verdict.judgement, verdict.compared_steps) == (Judgement.EXACT, STEPS), verdict.detail
    resumed = [e.event for e in job.entries() if isinstance(e.event, TrainingResumed)]
    assert [event.tier for event in resumed] == [None, Tier.MEMORY, Tier.MEMORY]
    # The copy of step 18 may not be whole, and the other slot still on its way to the storage.
    assert resumed[1].step >= 15


@pytest.mark.parametrize("ranks", [3, 4])
def test_without_settled_buckets_three_and_four_ranks_would_differ(job, ranks):
    untouched = job.beside("untouched")
    assert untouched.run(ranks, MUTANT="buckets") == 0
    assert job.run(ranks, MUTANT="buckets", KILL=KILLS.format(0, 1, 2)) == 0
    verdict = verify(job.path, untouched.path)
    assert verdict.judgement is Judgement.DIFFERENT
    assert verdict.component in ("optimizer", "model"), verdict.detail


@pytest.mark.parametrize(
    ("mutant", "component"),
    [("momentum", "optimizer"), ("schedule", "schedule"), ("rng", "rng"), ("data", "data")],
)
def test_a_restore_that_forgets_something_is_caught_by_its_name(job, twin, mutant, component):
    assert job.run(2, MUTANT=mutant, KILL="1:1:19") == 0
    verdict = verify(job.path, twin(2))
    resumed = [e.event.step for e in job.entries() if isinstance(e.event, TrainingResumed)][1]
    assert (verdict.judgement, verdict.component) == (Judgement.DIFFERENT, component)
    assert verdict.first_step == resumed


def test_other_numbers_of_ranks_go_on_in_the_same_order_of_samples(job, twin):
    once = ("--max-restarts", "0")
    assert job.run(4, *once, KILL="1:0:11") == 1
    assert job.run(2, *once, KILL="2:1:9") == 1
    assert job.run(4) == 0

    kept = {
        e.event.step: (e.attempt, e.event)
        for e in job.entries()
        if isinstance(e.event, StepFinished)
    }
    assert [kept[step][1].samples_start for step in range(1, STEPS + 1)] == [
        24 * step for step in range(STEPS)
    ]
    used = digests_of_samples(job.path)
    for ranks, attempt in ((4, 1), (2, 2), (4, 3)):
        reference = digests_of_samples(twin(ranks))
        steps = [step for step, (by, _) in kept.items() if by == attempt]
        assert steps
        for step in steps:
            for rank in range(ranks):
                assert used[step, rank] == reference[step, rank]


def digests_of_samples(path: Path) -> dict[tuple[int, int], str]:
    """Of the ids that each rank used in each step that was kept."""
    return {
        (entry.event.step, int(entry.writer.removeprefix("rank-"))): entry.event.components[
            "samples"
        ]
        for entry in read(RunDir.at(path))
        if isinstance(entry.event, StateDigested) and "samples" in entry.event.components
    }


def test_a_drained_job_loses_no_step_and_goes_on_to_the_same_end(job, twin):
    launched = job.start(2)
    while not any(isinstance(e.event, StepFinished) and e.event.step >= 7 for e in job.entries()):
        pass
    launched.signal(signal.SIGTERM)
    assert launched.wait() == 75
    left_at = max(e.event.step for e in job.entries() if isinstance(e.event, StepFinished))
    assert left_at < STEPS

    assert job.run(2) == 0
    resumed = [e.event.step for e in job.entries() if isinstance(e.event, TrainingResumed)]
    assert resumed == [0, left_at]
    assert verify(job.path, twin(2)).exact


def test_a_state_that_does_not_fit_is_refused_with_every_difference_and_stays_as_it_was(job, twin):
    assert job.run(2, "--max-restarts", "0", KILL="1:0:11") == 1
    assert job.run(2, "--max-restarts", "0", script=("--preset", "demo")) == 1
    # Every rank finds it; the launcher may end the others before they have said so.
    told = "".join(path.read_text() for path in (job.path / "logs").glob("attempt-2/rank-*.err"))
    assert "the saved state does not fit:" in told
    assert "model.token.weight is float32[256, 128] and was float32[256, 32]" in told
    assert "model.blocks.3.network.2.bias is here and not in the saved state" in told
    assert "batch_size is 32 and was 24" in told

    assert job.run(2) == 0
    assert verify(job.path, twin(2)).exact
