import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness import exactness
from harness.components import Protected
from harness.data import ResumableSampler
from harness.events import (
    Entry,
    Event,
    StateDigested,
    StepFinished,
    Tier,
    TrainingFinished,
    TrainingResumed,
)
from harness.recorder import Recorder
from harness.rundir import RunDir
from harness.verify import Judgement, Verdict, compare, final_digest, verify

NAMES = ("data", "schedule", "optimizer", "model", "rng", "samples", "loss")
Life = tuple[int, int, int]
"""Attempt, the step that it resumes from, the step that it gets to."""


def step_finished(step: int) -> StepFinished:
    return StepFinished(
        step,
        samples_start=4 * (step - 1),
        samples_end=4 * step,
        samples_digest=f"ids {step}",
        loss=1 / step,
        loss_step=step,
    )


def digested(step: int, rank: int = 0, **changed: str) -> StateDigested:
    return StateDigested(step, {name: f"{name} {step} {rank}" for name in NAMES} | changed)


def log(*lives: Life, ranks: int = 3, every: int = 1) -> list[Entry]:
    """The log of a run in these lives, each rank's entries in order."""
    entries: list[Entry] = []

    def tell(attempt: int, rank: int, event: Event) -> None:
        entries.append(Entry(len(entries), attempt, len(entries), event, f"rank-{rank}"))

    for attempt, start, end in lives:
        tell(attempt, 0, TrainingResumed(start, Tier.STORAGE if start else None))
        for step in range(start + 1, end + 1):
            tell(attempt, 0, step_finished(step))
            for rank in range(ranks):
                if step % every == 0:
                    tell(attempt, rank, digested(step, rank))
    return entries


TWIN = log((1, 0, 12))


def with_change(entries: list[Entry], attempt: int, step: int, **changed: str) -> list[Entry]:
    """The log with other digests told by rank 1 after `step` of `attempt`."""
    return [
        replace(entry, event=digested(step, 1, **changed))
        if (entry.attempt, entry.writer) == (attempt, "rank-1")
        and isinstance(entry.event, StateDigested)
        and entry.event.step == step
        else entry
        for entry in entries
    ]


def test_a_run_that_was_killed_three_times_and_redid_steps_equals_its_twin():
    run = log((1, 0, 5), (2, 4, 7), (3, 4, 4), (4, 4, 12))
    verdict = compare(run, TWIN)
    assert verdict == Verdict(
        Judgement.EXACT, "equal in every component after 12 step(s), the last of them 12", 12
    )
    assert verdict.exact
    assert final_digest(run) == final_digest(TWIN) is not None


def test_the_first_step_component_and_rank_that_differ_are_named():
    run = with_change(log((1, 0, 6), (2, 4, 12)), 2, 9, model="x", optimizer="y", loss="z")
    assert compare(run, TWIN) == Verdict(
        Judgement.DIFFERENT,
        "after step 9: optimizer of rank 1 differs; so do model, loss",
        12,
        first_step=9,
        component="optimizer",
        rank=1,
    )


def test_causes_are_named_before_effects():
    def named(**changed: str) -> str | None:
        return compare(with_change(TWIN, 1, 7, **changed), TWIN).component

    assert named(model="x", optimizer="x", rng="x", loss="x") == "rng"
    assert named(model="x", optimizer="x", data="x", samples="x") == "data"
    assert named(model="x", optimizer="x", schedule="x") == "schedule"
    assert named(loss="x", samples="x") == "samples"


def test_what_was_lost_and_redone_counts_as_it_was_redone():
    lives = ((1, 0, 6), (2, 4, 12))
    assert compare(with_change(log(*lives), 1, 6, model="lost"), TWIN).exact
    assert not compare(with_change(log(*lives), 2, 6, model="kept"), TWIN).exact
    assert not compare(with_change(log(*lives), 1, 4, model="kept"), TWIN).exact


def test_steps_that_were_lost_and_not_redone_are_no_part_of_the_run():
    verdict = compare(log((1, 0, 12), (2, 8, 10)), TWIN)
    assert verdict.detail == "one run ended after step 10, the other after 12"
    assert verdict.compared_steps == 10


def test_a_state_restored_on_fewer_ranks_is_told_by_those_alone():
    run = log((1, 0, 4))
    told = [Entry(900 + r, 2, r, digested(4, r), f"rank-{r}") for r in range(2)]
    verdict = compare([*run, Entry(899, 2, 0, TrainingResumed(4, Tier.STORAGE)), *told], run)
    assert verdict.detail == (
        "after step 4: ranks [0, 1] in one run and [0, 1, 2] in the other told their state"
    )


def test_a_rank_of_a_lost_attempt_that_still_writes_changes_nothing():
    run = log((1, 0, 6), (2, 4, 12))
    late = Entry(10_000, 1, 900, digested(7, 1, model="zombie"), "rank-1")
    last = Entry(10_001, 1, 901, step_finished(13), "rank-0")
    assert compare([*run, late, last], TWIN).exact


def test_a_restored_state_is_compared_where_it_is_told_without_samples_and_loss():
    run = log((1, 0, 6), (2, 4, 12))

    def restored(rank: int, **changed: str) -> Entry:
        whole = digested(4, rank, **changed).components
        state = {name: whole[name] for name in whole if name not in ("samples", "loss")}
        return Entry(5000, 2, 500 + rank, StateDigested(4, state), f"rank-{rank}")

    right = [restored(rank) for rank in range(3)]
    assert compare([*run, *right], TWIN).exact
    verdict = compare([*run, *right[:2], restored(2, optimizer="forgotten")], TWIN)
    assert (verdict.first_step, verdict.component, verdict.rank) == (4, "optimizer", 2)


def test_samples_and_losses_are_compared_at_steps_that_nobody_digested():
    sparse = log((1, 0, 12), every=6)

    def told(change: StepFinished) -> Verdict:
        run = [
            replace(entry, event=change)
            if isinstance(entry.event, StepFinished) and entry.event.step == change.step
            else entry
            for entry in sparse
        ]
        return compare(run, sparse)

    other_ids = told(replace(step_finished(3), samples_digest="others"))
    assert (other_ids.judgement, other_ids.first_step, other_ids.component) == (
        Judgement.DIFFERENT,
        3,
        "samples",
    )
    assert told(replace(step_finished(3), samples_end=13)).component == "samples"
    assert told(replace(step_finished(3), loss=math.nextafter(1 / 3, 1))).component == "loss"
    assert told(replace(step_finished(3), loss=-0.0)).component == "loss"
    assert told(replace(step_finished(3), tokens=7)).exact


def test_a_loss_that_is_not_a_number_equals_itself():
    run = [
        replace(entry, event=replace(entry.event, loss=math.nan))
        if isinstance(entry.event, StepFinished)
        else entry
        for entry in TWIN
    ]
    assert compare(run, run).exact
    assert compare(run, TWIN).component == "loss"


def test_runs_that_tell_of_no_loss_are_compared_by_the_rest():
    run = [
        replace(entry, event=replace(entry.event, loss=None, loss_step=None))
        if isinstance(entry.event, StepFinished)
        else entry
        for entry in TWIN
    ]
    assert compare(run, run).exact


def test_runs_that_end_at_different_steps_are_not_the_same():
    assert compare(log((1, 0, 11)), TWIN) == Verdict(
        Judgement.DIFFERENT, "one run ended after step 11, the other after 12", 11
    )


def test_other_ranks_are_not_the_same():
    verdict = compare(log((1, 0, 12), ranks=2), TWIN)
    assert verdict.judgement is Judgement.DIFFERENT
    assert verdict.detail.startswith(
        "after step 1: ranks [0, 1] in one run and [0, 1, 2] in the other told their state"
    )


def test_a_component_that_only_one_run_has_is_a_difference():
    run = [
        replace(
            entry, event=StateDigested(entry.event.step, {**entry.event.components, "ema": "x"})
        )
        if isinstance(entry.event, StateDigested)
        else entry
        for entry in TWIN
    ]
    assert compare(run, TWIN).component == compare(TWIN, run).component == "ema"


@pytest.mark.parametrize(
    "run", [[], log((1, 0, 12), every=100), log((1, 0, 12), every=5)], ids=["empty", "none", "some"]
)
def test_where_nothing_tells_of_the_end_the_answer_is_unknown(run: list[Entry]):
    verdict = compare(run, run)
    assert verdict.judgement is Judgement.UNKNOWN
    assert not verdict.exact
    assert "HARNESS_DIGEST_EVERY_STEPS=1" in verdict.detail
    assert final_digest(run) is None


def test_the_final_digest_counts_every_rank_and_component_of_the_last_step_alone():
    assert final_digest(with_change(TWIN, 1, 11, model="x")) == final_digest(TWIN)
    assert final_digest(with_change(TWIN, 1, 12, model="x")) != final_digest(TWIN)
    assert final_digest(log((1, 0, 12), ranks=2)) != final_digest(TWIN)
    assert final_digest(list(reversed(TWIN))) == final_digest(TWIN)


@st.composite
def histories(draw: st.DrawFn) -> list[Life]:
    """Lives of a run of 12 steps, each resuming somewhere before the former's end."""
    lives: list[Life] = []
    end = 0
    for attempt in range(1, draw(st.integers(1, 5)) + 1):
        start = draw(st.integers(0, end))
        end = draw(st.integers(start, 12))
        lives.append((attempt, start, end))
    return [*lives, (len(lives) + 1, draw(st.integers(0, end)), 12)]


@given(histories(), st.integers(1, 12))
def test_any_history_of_a_run_is_exact_and_any_change_in_what_was_kept_is_found(
    lives: list[Life], step: int
):
    run = log(*lives)
    assert compare(run, TWIN).exact
    kept_by = max(attempt for attempt, start, end in lives if start < step <= end)
    verdict = compare(with_change(run, kept_by, step, model="x"), TWIN)
    assert (verdict.first_step, verdict.component, verdict.rank) == (step, "model", 1)


def test_logs_on_disk_are_read_and_compared(tmp_path: Path):
    runs = []
    for name, changed in (("run", {}), ("twin", {}), ("other", {"optimizer": "x"})):
        run_dir = RunDir.at(tmp_path / name)
        run_dir.create()
        with Recorder(run_dir, "id", "rank-0", 1) as recorder:
            recorder.write(TrainingResumed(0, None))
            recorder.write(step_finished(1))
            recorder.write(digested(1, 0, **changed))
            recorder.write(TrainingFinished(1))
        runs.append(run_dir.path)
    assert verify(runs[0], runs[1]).exact
    assert verify(runs[0], runs[2]).component == "optimizer"


def test_digests_of_a_real_job_name_what_a_restore_forgot():
    def job() -> tuple[Protected, ResumableSampler]:
        exactness.seed_all(0, 0)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        sampler = ResumableSampler(9, 3, rank=0, world_size=1)
        protected = Protected()
        protected.add(model=model, optimizer=optimizer, data=sampler)
        batch = torch.tensor([next(iter(sampler))], dtype=torch.float32)
        sampler.consumed()
        model(batch).sum().backward()
        optimizer.step()
        return protected, sampler

    def told(protected: Protected, attempt: int, at: int) -> list[Entry]:
        components = {**protected.digests(), "rng": exactness.rng_digest()}
        events: list[Event] = [TrainingResumed(0, None), step_finished(1)]
        events.append(StateDigested(1, components))
        return [Entry(at + i, attempt, i, event, "rank-0") for i, event in enumerate(events)]

    twin = told(job()[0], 1, 0)
    assert compare(told(job()[0], 1, 0), twin).exact
    protected, sampler = job()
    sampler.load_state_dict(sampler.state_dict() | {"position": 0})
    assert compare(told(protected, 1, 0), twin).component == "data"
