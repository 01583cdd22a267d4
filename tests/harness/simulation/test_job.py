"""Every option of a simulated job: small cases worked by hand, and the long run against theory."""

import math
import random
import statistics
from dataclasses import replace
from typing import Any

import pytest

from harness.events import (
    Cause,
    CheckpointRejected,
    DrainRequested,
    Entry,
    Event,
    FailureDetected,
    RunStarted,
    SaveCommitted,
    SaveFailed,
    SaveStarted,
    StepTimed,
    Tier,
    TrainingResumed,
)
from harness.fleet import expected_slowest, persistent_slowdown
from harness.goodput import Split, split
from harness.phases import Phase
from harness.recovery import Stage
from harness.simulation.draws import Draw, mulberry32
from harness.simulation.failures import Failure, Failures, Instants, Next, Renewal
from harness.simulation.job import Appearance, SimulatedJob
from harness.simulation.laws import Constant, Exponential, Law, LogNormal
from harness.simulation.loop import Costs
from harness.simulation.options import (
    Corruption,
    Exposure,
    FastTier,
    Maintenance,
    Options,
    Spares,
    Stragglers,
)
from harness.simulation.spares import Pool
from harness.simulation.trouble import Blame, blamed
from harness.theory import daly_goodput, goodput
from harness.timeline import timeline

S = 1_000_000_000
EVER = Instants([1e12])
"""No failure."""
PLAIN, NOTHING_SAID = Options(), Appearance()


def run(
    costs: Costs,
    failures: Failures,
    options: Options = PLAIN,
    seed: int = 1,
    appearance: Appearance = NOTHING_SAID,
) -> list[Entry]:
    return list(SimulatedJob(costs, failures, options, seed, appearance).entries())


def seconds(entries: list[Entry]) -> dict[str, float]:
    whole = split(timeline(entries))
    return {kind: ns / S for kind, ns in whole.classes_ns().items() if ns}


def events(entries: list[Entry], *kinds: type[Event]) -> list[tuple[float, Any]]:
    return [(entry.at_ns / S, entry.event) for entry in entries if isinstance(entry.event, kinds)]


# ── worked by hand ──────────────────────────────────────────────────────────────────────────────


def test_a_failure_during_work_loses_the_interval():
    # [0, 10) work, [10, 11) save, [11, 15) work lost, [15, 20) restart, [20, 30) work, save to 31
    entries = run(Costs(10, 1, 5, 30), Instants([15]))
    assert seconds(entries) == {"kept": 20, "lost": 4, "save_stall": 2, "restart": 5}
    assert entries[-1].at_ns == 31 * S


def test_a_failure_during_the_save_loses_the_interval_and_the_save():
    entries = run(Costs(10, 2, 5, 30), Instants([11]))
    whole = split(timeline(entries))
    assert whole.coarse_ns() == {
        "work": 20 * S,
        "checkpoint": 4 * S,
        "lost": 11 * S,
        "restart": 5 * S,
    }
    assert whole.cut_short_ns == 1 * S


def test_a_failure_as_the_save_ends_costs_no_work():
    assert seconds(run(Costs(10, 2, 5, 13), Instants([12]))) == {
        "kept": 10,
        "save_stall": 2,
        "restart": 5,
    }


def test_a_failure_that_is_noticed_late():
    entries = run(Costs(10, 1, 5, 30), Instants([15]), Options(detection=Constant(3)))
    assert seconds(entries) == {
        "kept": 20,
        "lost": 4,
        "interrupted": 3,
        "save_stall": 2,
        "restart": 5,
    }


def test_a_restart_in_parts_tells_of_each():
    stages: dict[Stage, Law] = {
        Stage.TEARDOWN: Constant(1),
        Stage.RENDEZVOUS: Constant(2),
        Stage.SPAWN: Constant(3),
        Stage.INIT: Constant(4),
        Stage.RESTORE: Constant(5),
        Stage.WARMUP: Constant(6),
    }
    entries = run(Costs(10, 1, 99, 40), Instants([15]), Options(stages=stages))
    assert seconds(entries) == {
        "kept": 20,
        "lost": 4,
        "save_stall": 2,
        "restart": 10,
        "restore": 5,
        "warmup": 6,
    }
    (record,) = timeline(entries).account.recovery.records
    assert {stage: ns / S for stage, ns in record.phases.items()} == {
        stage: law.mean_s for stage, law in stages.items()
    }


def test_a_failure_during_a_restart_begins_another():
    # fails at 15, is to be back at 20; fails again at 18, is back at 23
    options = Options(exposure=Exposure.ALWAYS)
    entries = run(Costs(10, 1, 5, 30), Instants([15, 18]), options)
    assert seconds(entries) == {"kept": 20, "lost": 4, "save_stall": 2, "restart": 8}
    assert [at for at, _ in events(entries, FailureDetected)] == [15, 18]
    assert timeline(entries).account.attempts == 3
    textbook = run(Costs(10, 1, 5, 30), Instants([15, 18]))
    assert [at for at, _ in events(textbook, FailureDetected)] == [15]


class InTurn:
    """Failures with these gaps, whatever is asked from when on."""

    def __init__(self, *gaps_s: float) -> None:
        self.gaps_s = gaps_s

    def begin(self, _draw: Draw, /) -> Next:
        left = iter(self.gaps_s)
        return lambda now_s: Failure(now_s + next(left))


def test_failures_that_strike_at_any_time_follow_each_other_and_not_the_restarts():
    # fails at 15, known at 17; at 18, known at 20, back at 25; at 48
    options = Options(exposure=Exposure.ALWAYS, detection=Constant(2))
    entries = run(Costs(10, 1, 5, 49), InTurn(15, 3, 30, 1e9), options)
    assert [at for at, _ in events(entries, FailureDetected)] == [17, 20, 50]
    assert [at for at, _ in events(entries, TrainingResumed)] == [0, 25, 55]


def test_a_failure_before_the_last_one_was_noticed_is_the_same_failure():
    # fails at 15, known at 19; what fails at 18 is already down
    options = Options(exposure=Exposure.ALWAYS, detection=Constant(4))
    entries = run(Costs(10, 1, 5, 49), InTurn(15, 3, 30, 1e9), options)
    assert [at for at, _ in events(entries, FailureDetected)] == [19, 52]


def test_a_failure_of_a_job_that_has_left_hits_nothing_and_the_next_follows_it():
    # leaves at 31, back at 43; failures at 35, which hits nothing, and 57
    options = Options(exposure=Exposure.ALWAYS, maintenance=Maintenance(every_s=30, down_s=7))
    entries = run(Costs(10, 1, 5, 57), InTurn(35, 22, 1e9), options)
    assert [at for at, _ in events(entries, DrainRequested)] == [31]
    assert [at for at, _ in events(entries, FailureDetected)] == [57]


def test_what_becomes_durable_after_the_failure_is_lost_however_late_that_is_noticed():
    # the save of [10, 11) would be durable at 15; fails at 14, known at 20
    options = Options(commit_s=4, detection=Constant(6))
    entries = run(Costs(10, 1, 5, 24), Instants([14]), options)
    assert [event.step for _, event in events(entries, TrainingResumed)] == [0, 0]


def test_a_save_that_is_durable_later_is_lost_with_the_job():
    # the save of [10, 11) is durable at 15: a failure at 14 goes back to the beginning
    early = run(Costs(10, 1, 5, 20), Instants([14]), Options(commit_s=4))
    assert [event.step for _, event in events(early, TrainingResumed)] == [0, 0]
    assert [at for at, _ in events(early, SaveFailed)] == [14]
    late = run(Costs(10, 1, 5, 20), Instants([16]), Options(commit_s=4))
    assert [event.step for _, event in events(late, TrainingResumed)] == [0, 2]
    assert events(late, SaveCommitted)[0][0] == 15
    assert seconds(late)["kept"] == 10


def test_saves_are_made_durable_one_at_a_time():
    entries = run(Costs(10, 1, 5, 30), EVER, Options(commit_s=15))
    assert [at for at, _ in events(entries, SaveCommitted)] == [26, 41, 56]
    assert entries[-1].at_ns == 56 * S


def test_a_storage_save_that_failed_is_made_up_for_at_once():
    # memory at 6, storage at 14 (durable 24), memory at 20; fails at 22: back to the memory of 20,
    # and the storage save that was lost is due before any work
    fast = FastTier(interval_s=5, save_s=1, restart_s=1, share=1.0)
    entries = run(Costs(10, 3, 5, 27), Instants([22]), Options(fast=fast, commit_s=10))
    assert [at for at, _ in events(entries, SaveFailed)] == [22]
    assert [(at, event.step) for at, event in events(entries, TrainingResumed)] == [(0, 0), (23, 4)]
    assert [(at, event.tier) for at, event in events(entries, SaveStarted)][-2:] == [
        (23, Tier.STORAGE),
        (31, Tier.MEMORY),
    ]


def test_two_tiers_each_at_its_own_interval():
    # memory every 4 s of work for 1 s, storage every 10 s for 2 s: 4+1, 4+1, 2+2, …
    fast = FastTier(interval_s=4, save_s=1, restart_s=1, share=1.0)
    entries = run(Costs(10, 2, 5, 14), EVER, Options(fast=fast))
    assert [(at, event.tier, event.step) for at, event in events(entries, SaveCommitted)] == [
        (5, Tier.MEMORY, 2),
        (10, Tier.MEMORY, 3),
        (14, Tier.STORAGE, 4),
        (14, Tier.MEMORY, 4),
    ]


def test_what_went_to_storage_stands_in_the_fast_tier_too():
    # memory at 5, storage at 11; fails at 12, and the copy in memory stands: back in 1 s
    fast = FastTier(interval_s=4, save_s=1, restart_s=1, share=1.0)
    entries = run(Costs(8, 2, 5, 13), Instants([12]), Options(fast=fast))
    at_s, event = events(entries, TrainingResumed)[-1]
    assert (at_s, event.tier, event.step) == (13, Tier.MEMORY, 3)
    lost = run(Costs(8, 2, 5, 13), Instants([12]), Options(fast=replace(fast, share=0.0)))
    at_s, event = events(lost, TrainingResumed)[-1]
    assert (at_s, event.tier, event.step) == (17, Tier.STORAGE, 3)


def test_a_state_whose_save_to_storage_failed_stands_in_the_fast_tier():
    # storage from 9 to 11, durable at 21; fails at 12: nothing is in storage yet
    fast = FastTier(interval_s=4, save_s=1, restart_s=1, share=1.0)
    options = Options(fast=fast, commit_s=10)
    entries = run(Costs(8, 2, 5, 14), Instants([12]), options)
    assert [(at, event.tier) for at, event in events(entries, SaveFailed)] == [(12, Tier.STORAGE)]
    at_s, event = events(entries, TrainingResumed)[-1]
    assert (at_s, event.tier, event.step) == (13, Tier.MEMORY, 3)
    assert seconds(entries)["lost"] == 1
    lost = run(Costs(8, 2, 5, 14), Instants([12]), replace(options, fast=replace(fast, share=0.0)))
    assert events(lost, TrainingResumed)[-1] == (17, TrainingResumed(0, None, None))


def test_intervals_that_are_multiples_make_no_save_of_a_rounding_error():
    fast = FastTier(interval_s=0.1, save_s=0.0, restart_s=1, share=1.0)
    entries = run(Costs(0.3, 0.0, 5, 30), EVER, Options(fast=fast))
    kinds = [event.tier for _, event in events(entries, SaveStarted)]
    assert kinds == [Tier.MEMORY, Tier.MEMORY, Tier.STORAGE] * 100


@pytest.mark.parametrize(
    ("share", "resumed", "lost_s", "back_s"), [(1.0, Tier.MEMORY, 3, 14), (0.0, None, 11, 18)]
)
def test_a_failure_that_the_fast_tier_serves_and_one_that_it_does_not(
    share, resumed, lost_s, back_s
):
    # memory saved at 5 and 10; fails at 13
    fast = FastTier(interval_s=4, save_s=1, restart_s=1, share=share)
    entries = run(Costs(100, 2, 5, 15), Instants([13]), Options(fast=fast))
    at_s, event = events(entries, TrainingResumed)[-1]
    assert (at_s, event.tier) == (back_s, resumed)
    assert seconds(entries)["lost"] == lost_s


def test_planned_maintenance_saves_leaves_and_loses_nothing():
    # leaves at 15 after 4 s of work (a save of 1 s first), is away for 7 s, starts for 5 s
    options = Options(maintenance=Maintenance(every_s=15, down_s=7))
    entries = run(Costs(10, 1, 5, 28), EVER, options)
    assert [at for at, _ in events(entries, DrainRequested)] == [16]
    assert [at for at, _ in events(entries, RunStarted)] == [0, 23]
    told = timeline(entries)
    assert seconds(entries) == {"kept": 14, "save_stall": 2, "down": 7, "startup": 5}
    assert (told.account.lives, told.account.interventions) == (2, 1)


def test_maintenance_waits_for_the_last_save_and_passes_over_what_falls_into_it():
    # saves end at 11 and 16 and are durable at 17 and 23; away until 53, past 30 and 45; back at 58
    options = Options(commit_s=6, maintenance=Maintenance(every_s=15, down_s=30))
    entries = run(Costs(10, 1, 5, 60), EVER, options)
    assert [at for at, _ in events(entries, DrainRequested)] == [16, 61]
    assert [at for at, _ in events(entries, SaveCommitted)] == [17, 23, 67]
    assert [at for at, _ in events(entries, RunStarted)] == [0, 53, 97]


def test_corruption_costs_everything_since_the_last_sound_save():
    # saves of steps 2, 3, 4 from 10, 21, 32; wrong from 25 on, noticed at 40: back to the one from 21
    options = Options(corruption=Corruption(gap=Constant(25), lag=Constant(15)))
    entries = run(Costs(10, 1, 5, 41), EVER, options)
    (noticed,) = events(entries, FailureDetected)
    assert (noticed[0], noticed[1].cause) == (40, Cause.CORRUPTION)
    assert [event.step for _, event in events(entries, CheckpointRejected)] == [4]
    assert [event.step for _, event in events(entries, TrainingResumed)] == [0, 3]
    assert seconds(entries) == {"kept": 20, "lost": 10 + 7, "save_stall": 3, "restart": 5}


def test_a_failure_before_the_corruption_is_noticed_may_cure_it():
    # wrong from 25 on; fails at 28 and goes back to the state of 21, which is sound
    options = Options(corruption=Corruption(gap=Constant(25), lag=Constant(100)))
    entries = run(Costs(10, 1, 5, 57), Instants([28]), options)
    assert [event.cause for _, event in events(entries, FailureDetected)] == [Cause.NODE_LOSS]


def test_numbers_that_a_failure_has_cured_go_wrong_again():
    # wrong from 25 on; fails at 28, back at 33 from a sound state; wrong from 58 on, noticed at 158
    options = Options(corruption=Corruption(gap=Constant(25), lag=Constant(100)))
    entries = run(Costs(10, 1, 5, 158), Instants([28]), options)
    found = [(at, event.cause) for at, event in events(entries, FailureDetected)]
    assert found == [(28, Cause.NODE_LOSS), (158, Cause.CORRUPTION)]
    assert [event.step for _, event in events(entries, TrainingResumed)][-1] == 6


def test_a_state_copied_before_the_numbers_went_wrong_is_sound_even_if_saved_after():
    # the save of the state of 21 ends at 22; wrong from 21.5 on, noticed at 31.5
    options = Options(corruption=Corruption(gap=Constant(21.5), lag=Constant(10)))
    entries = run(Costs(10, 1, 5, 32), EVER, options)
    assert events(entries, CheckpointRejected) == []
    assert [event.step for _, event in events(entries, TrainingResumed)] == [0, 3]


def test_a_sound_state_in_the_fast_tier_cures_wrong_numbers():
    # memory saved at 5 and 10; wrong from 12 on, noticed at 14
    fast = FastTier(interval_s=4, save_s=1, restart_s=1, share=0.0)
    options = Options(fast=fast, corruption=Corruption(gap=Constant(12), lag=Constant(2)))
    entries = run(Costs(100, 2, 5, 15), EVER, options)
    assert events(entries, TrainingResumed)[-1] == (15, TrainingResumed(3, Tier.MEMORY, 1))


def test_a_failure_after_a_save_of_wrong_numbers_does_not_cure_it():
    # wrong from 25 on, saved at 32; fails at 35, goes on from there; noticed at 50
    options = Options(corruption=Corruption(gap=Constant(25), lag=Constant(25)))
    entries = run(Costs(10, 1, 5, 51), Instants([35]), options)
    assert [event.step for _, event in events(entries, TrainingResumed)] == [0, 4, 3]


def test_a_job_waits_for_a_repaired_node_when_the_spares_are_used_up():
    # one spare, repairs take 100 s: failures at 15 and 30; the second waits until 115
    options = Options(spares=Spares(1, Constant(100)))
    entries = run(Costs(10, 1, 5, 120), Instants([15, 30]), options)
    assert [at for at, _ in events(entries, TrainingResumed)] == [0, 20, 120]
    records = timeline(entries).account.recovery.records
    assert [record.phases.get(Stage.RENDEZVOUS, 0) for record in records] == [0, 85 * S]


def test_a_rack_takes_as_many_spares_as_it_has_nodes():
    pool = Pool(free=3)
    assert pool.replace(0, [50, 60]) == 0
    assert pool.replace(10, [50, 70]) == 50
    assert pool.replace(55, [5]) == 60
    assert pool.replace(100, [1, 1]) == 100
    assert Pool(free=0).replace(0, [7, 3]) == 7


def test_a_failure_of_many_nodes_waits_for_a_spare_for_each():
    # one spare for the two nodes that fail at 15: the other is repaired at 115
    class OnTwoNodes:
        def begin(self, _draw: Draw, /) -> Next:
            return lambda now_s: Failure(15 if now_s < 15 else 1e9, (2, 3))

    options = Options(spares=Spares(1, Constant(100)))
    entries = run(Costs(10, 1, 5, 121), OnTwoNodes(), options)
    assert [at for at, _ in events(entries, TrainingResumed)] == [0, 120]


def test_the_wait_for_a_node_begins_when_the_failure_is_noticed():
    # no spare: fails at 15, known at 18; the repair of 100 s begins then
    options = Options(spares=Spares(0, Constant(100)), detection=Constant(3))
    entries = run(Costs(10, 1, 5, 124), Instants([15]), options)
    assert [at for at, _ in events(entries, TrainingResumed)] == [0, 123]


def test_stragglers_make_each_interval_hold_less():
    # a step takes as long as the slowest of four: an interval of 10 s holds less than 10 s of work
    slow = Stragglers(devices=4, slow_share=1.0, slowdown=2.0)
    job = SimulatedJob(Costs(10, 1, 5, 22), EVER, Options(stragglers=slow), 1)
    entries = list(job.entries())
    assert job.useful_s == 10
    assert [event for _, event in events(entries, StepTimed)] == [
        StepTimed(2, 5 * S, 5 * S),
        StepTimed(3, 5 * S, 5 * S),
    ]
    assert timeline(entries).account.ranks[0].wait_ns == 5 * S


def test_which_devices_are_slow_is_drawn_anew_at_each_restart():
    slow = Stragglers(devices=1, slow_share=0.5, slowdown=2.0)
    entries = run(Costs(10, 1, 5, 600), Renewal(Constant(15)), Options(stragglers=slow))
    own = [event.own_ns for _, event in events(entries, StepTimed)]
    assert len(own) == 30
    assert set(own) == {5 * S, 10 * S}


def test_a_failure_is_put_down_to_one_of_its_causes():
    blames = (Blame("GPU", Cause.SIGNAL, 3), Blame("NIC", Cause.HANG, 1))
    assert [blamed(blames, u).reason for u in (0, 0.74, 0.76, 1 - 1e-12)] == [
        "GPU",
        "GPU",
        "NIC",
        "NIC",
    ]
    appearance = Appearance(ranks=64, blames=blames)

    class OnNodeThree:
        def begin(self, _draw: Draw, /) -> Next:
            return lambda now: Failure(now + 15, (3,))

    (_, first), *_ = events(
        run(Costs(10, 1, 5, 60), OnNodeThree(), appearance=appearance), FailureDetected
    )
    assert first.rank == 24
    assert first.reason in ("GPU", "NIC")


# ── the long run ────────────────────────────────────────────────────────────────────────────────


def goodputs(costs: Costs, law: Law, options: Options, seeds: range) -> list[float]:
    return [SimulatedJob(costs, Renewal(law), options, seed).goodput() for seed in seeds]


def assert_mean(values: list[float], expected: float, slack: float = 0.0) -> None:
    """Within 4 standard errors, which a right simulator misses once in 16,000 sets of seeds."""
    error = statistics.stdev(values) / math.sqrt(len(values))
    assert abs(statistics.fmean(values) - expected) < 4 * error + slack, (
        statistics.fmean(values),
        expected,
        error,
    )


def test_the_long_run_is_what_the_exact_form_says():
    costs = Costs(900, 60, 600, 3e6)
    told = goodputs(costs, Exponential(5000), Options(), range(20))
    assert_mean(told, goodput(900, 60, 600, 5000), slack=5e-4)  # the start and the end of a run


def test_failures_in_restarts_cost_what_daly_s_complete_model_says():
    costs = Costs(900, 60, 3000, 3e6)
    always = Options(exposure=Exposure.ALWAYS)
    told = goodputs(costs, Exponential(5000), always, range(20))
    assert_mean(told, daly_goodput(900, 60, 3000, 5000), slack=5e-4)
    assert daly_goodput(900, 60, 3000, 5000) < goodput(900, 60, 3000, 5000) - 0.02


def test_a_restart_that_varies_costs_its_mean():
    stages: dict[Stage, Law] = {Stage.INIT: LogNormal(600, 1.0)}
    costs = Costs(900, 60, 1, 3e6)
    told = goodputs(costs, Exponential(5000), Options(stages=stages), range(20))
    assert_mean(told, goodput(900, 60, 600, 5000), slack=5e-4)


@pytest.mark.parametrize(("share", "expected"), [(0.8, 0.928), (0.45, 0.899), (0.23, 0.887)])
def test_two_tiers_reach_what_was_simulated_elsewhere(share, expected):
    mtbf_s = 11_160
    intervals = [
        math.sqrt(2 * save * mtbf_s / rate) for save, rate in ((3, share), (33, 1 - share))
    ]
    fast = FastTier(intervals[0], 3, 120, share)
    costs = Costs(intervals[1], 33, 600, 4e6)
    told = goodputs(costs, Exponential(mtbf_s), Options(fast=fast), range(16))
    assert statistics.fmean(told) == pytest.approx(expected, abs=0.002)  # published to three digits


def test_a_slow_commit_adds_its_length_to_what_is_lost():
    # lost per failure: half an interval, plus the flush; so many failures that it can be seen
    costs, mtbf_s = Costs(900, 0, 0, 2e6), 20_000
    plain = goodputs(costs, Exponential(mtbf_s), Options(), range(10))
    later = goodputs(costs, Exponential(mtbf_s), Options(commit_s=450), range(10))
    differences = [one - other for one, other in zip(plain, later, strict=True)]
    assert_mean(differences, 450 / mtbf_s, slack=1.5e-3)


def test_the_time_of_a_step_against_steps_that_wait_for_the_slowest():
    chance = random.Random(7)
    speeds = [1.3] * 3 + [1.0] * 61
    told = [max(own * chance.lognormvariate(-0.005, 0.1) for own in speeds) for _ in range(4000)]
    assert_mean(told, Stragglers(64, noise=0.1, slow_share=0.05, slowdown=1.3).factor(3))
    plain = expected_slowest(64, lambda z: math.exp(0.1 * z - 0.005))
    assert Stragglers(64, noise=0.1).factor(0) == pytest.approx(plain)
    assert Stragglers(64, slow_share=0.05, slowdown=1.3).factor(3) == 1.3


def test_slow_devices_are_as_many_as_their_share_says():
    slow = Stragglers(1000, slow_share=0.002, slowdown=2.0)
    draw = mulberry32(1)
    counts = [slow.slow_devices(draw()) for _ in range(20_000)]
    assert_mean([float(count) for count in counts], 2.0)
    assert statistics.variance(counts) == pytest.approx(1000 * 0.002 * 0.998, rel=0.05)
    # one slow device slows all: its share of attempts is what the closed form says
    factors = [slow.factor(min(count, 1)) for count in counts]
    assert_mean(factors, persistent_slowdown(1000, 0.002, 2.0))
    assert Stragglers(16_384, slow_share=0.1, slowdown=2).slow_devices(0.5) == 1638
    assert Stragglers(4, slow_share=0.0).slow_devices(0.99) == 0


def test_the_cost_of_stragglers_grows_with_the_number_of_devices():
    factors = [Stragglers(n, noise=0.05).factor(0) for n in (1, 8, 512, 16_384)]
    assert factors == sorted(factors)
    assert factors[0] == pytest.approx(1.0)
    assert 1.15 < factors[-1] < 1.25


def test_a_run_without_a_word_goes_as_one_that_is_told():
    fast = FastTier(300, 2, 60, 0.5)
    options = Options(fast=fast, commit_s=200, detection=Exponential(60))
    told = SimulatedJob(Costs(900, 60, 600, 2e5), Renewal(Exponential(5000)), options, 3)
    whole = split(timeline(told.entries()))
    silent = SimulatedJob(Costs(900, 60, 600, 2e5), Renewal(Exponential(5000)), options, 3)
    assert silent.goodput() == pytest.approx(told.kept_s / told.now_s, rel=1e-12)
    # the end waits for the last commit, which is no work
    assert whole.kept_ns == pytest.approx(told.kept_s * S, rel=1e-12)


def test_options_leave_the_failures_where_they_are():
    costs = Costs(900, 60, 600, 2e5)
    plain = run(costs, Renewal(Exponential(5000)), Options(), 3)
    other = run(costs, Renewal(Exponential(5000)), Options(stragglers=Stragglers(8, 0.1)), 3)
    assert events(plain, FailureDetected) == events(other, FailureDetected)


def test_everything_at_once_is_a_log_that_can_have_happened():
    options = Options(
        exposure=Exposure.ALWAYS,
        detection=Exponential(60),
        stages={stage: Exponential(60) for stage in Stage if stage is not Stage.DETECT},
        commit_s=200,
        fast=FastTier(120, 2, 60, 0.5),
        maintenance=Maintenance(40_000, 3000),
        stragglers=Stragglers(64, 0.05, 0.001, 1.3),
        corruption=Corruption(Exponential(30_000), Exponential(4000)),
        spares=Spares(2, Exponential(9000)),
    )
    for seed in range(12):
        entries = run(Costs(900, 60, 600, 2e5), Renewal(Exponential(2500)), options, seed)
        assert [entry.at_ns for entry in entries] == sorted(entry.at_ns for entry in entries)
        whole: Split = split(timeline(entries))
        assert sum(whole.classes_ns().values()) == whole.wall_ns == entries[-1].at_ns
        assert min(whole.classes_ns().values()) >= 0
        assert whole.state_ns[Phase.DOWN] > 0


def test_a_part_that_a_restart_does_not_have_is_refused():
    with pytest.raises(ValueError, match=r"^detect is no part of a restart"):
        Options(stages={Stage.DETECT: Constant(1)})
