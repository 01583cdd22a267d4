from harness.account import Account
from harness.events import (
    Entry,
    Event,
    HealthObserved,
    LossSpiked,
    NonfiniteFound,
    Place,
    Reaction,
    ReplicasCompared,
)
from harness.present import Present
from harness.report.health import lines
from harness.signals.findings import Findings, Mismatch, Nonfinite
from harness.signals.samples import DRAW_HEALTH


def found(*told: tuple[str, int, Event], keep: int = 8) -> Findings:
    """Writer, attempt and event, in order."""
    findings = Findings()
    for sequence, (writer, attempt, event) in enumerate(told):
        findings.observe(Entry(sequence, attempt, sequence, event, writer), keep)
    return findings


FIRST = HealthObserved(10, 2.0, 1.0, 10, 4, {"all": 0.001, "model.0": 0.002, "model.1": 0.003})
SECOND = HealthObserved(20, 0.5, 1.0, 10, 1, {"all": 0.004})


def bad(step: int, place: Place) -> NonfiniteFound:
    return NonfiniteFound(step, place, Reaction.REPORT)


def values(findings: Findings) -> dict[str, object]:
    now = Present("job", "run", "cpu", Account(findings=findings), True, [], {})
    return {name.removeprefix("harness_"): draw(now) for name, draw in DRAW_HEALTH.items()}


def test_the_last_reading_counts_and_clips_add_up():
    findings = found(("rank-0", 1, FIRST), ("rank-0", 1, SECOND))
    told = values(findings)
    assert told["grad_norm"] == {(): 0.5}
    assert told["grad_clip_norm"] == {(): 1.0}
    assert told["clip_steps_total"] == {(): 20}
    assert told["clipped_steps_total"] == {(): 5}
    assert told["update_to_weight_ratio"] == {("all",): 0.004}
    assert [line.text for line in lines(findings)] == [
        "gradient norm: 0.5 before clipping to 1; 25.0% of steps were clipped",
        "update to weight: 4.00e-03",
    ]


def test_what_nobody_told_has_no_sample_and_counters_begin_at_zero():
    told = values(Findings())
    assert told["grad_norm"] == told["grad_clip_norm"] == told["update_to_weight_ratio"] == {}
    assert told["clip_steps_total"] == told["nonfinite_steps_total"] == {(): 0}
    assert list(lines(Findings())) == []


def test_a_step_counts_once_however_many_ranks_find_it_and_again_when_it_is_redone():
    findings = found(
        ("rank-1", 1, bad(7, Place.LOSS)),
        ("rank-0", 1, bad(7, Place.GRADIENT)),
        ("rank-0", 1, bad(8, Place.LOSS)),
        ("rank-2", 1, bad(7, Place.LOSS)),
        ("rank-1", 2, bad(7, Place.LOSS)),
        keep=2,
    )
    assert findings.nonfinite_steps == 3
    assert findings.nonfinite == [
        Nonfinite(7, 1, 2, Place.LOSS, Reaction.REPORT),
        Nonfinite(7, 2, 1, Place.LOSS, Reaction.REPORT),
    ]
    (line,) = lines(findings)
    assert line.text == ("NaN or Inf in 3 steps, the last in the loss of rank 1 at step 7: report")
    assert line.is_bad


def test_the_rank_whose_loss_it_was_is_told_before_the_gradient_that_all_share():
    findings = found(
        ("rank-2", 1, bad(7, Place.LOSS)),
        ("rank-0", 1, bad(7, Place.GRADIENT)),
    )
    (line,) = lines(findings)
    assert line.text == "NaN or Inf in 1 step, the last in the loss of rank 2 at step 7: report"


def test_the_blocks_that_move_most_are_named():
    *_, ratios = lines(found(("rank-0", 1, FIRST)))
    assert ratios.text == (
        "update to weight: 1.00e-03 (most in model.1 3.00e-03, model.0 2.00e-03)"
    )


def test_spikes_and_replicas_that_differ_are_counted_and_told():
    findings = found(
        ("rank-0", 1, ReplicasCompared(100)),
        ("rank-0", 1, ReplicasCompared(200, ["model.0"], [2])),
        ("rank-0", 1, ReplicasCompared(300, ["model.0"])),
        ("rank-0", 1, LossSpiked(301, 6.0, 2.0, 12.5)),
    )
    told = values(findings)
    assert told["replica_checks_total"] == {(): 3}
    assert told["replica_mismatches_total"] == {(): 2}
    assert told["loss_spikes_total"] == {(): 1}
    assert findings.replicas.mismatches == [
        Mismatch(200, 1, ["model.0"], [2]),
        Mismatch(300, 1, ["model.0"], ()),
    ]
    assert [line.text for line in lines(findings)] == [
        "the loss spiked 1 time, the last at step 301: 6.0000 after a median of 2.0000",
        (
            "weights differed between ranks in 2 of 3 comparisons, the last at step 300:"
            " no majority says which"
        ),
    ]


def test_replicas_that_were_always_equal_are_told_too():
    (line,) = lines(found(("rank-0", 1, ReplicasCompared(100))))
    assert (line.text, line.is_bad) == ("weights equal on all ranks in 1 comparison", False)
