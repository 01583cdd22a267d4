from hypothesis import given, settings

from harness.events import (
    Cause,
    Entry,
    EvaluationFinished,
    EvaluationStarted,
    FailureDetected,
    RestoreStarted,
    SaveStarted,
    SaveUnblocked,
    Tier,
    TrainingResumed,
)
from harness.fold import Fold
from harness.goodput import Split, split
from harness.phases import Phase
from harness.timeline import timeline
from tests.harness.runs import S, log, start, step, walks


def test_a_run_worked_by_hand():
    # 8 s until the first step, then: 2 s work, 1 s evaluation, 1 s save, 2 s work that are lost,
    # 1 s interrupted with half a save in it, 3 s restart, 1 s restore, 2 s warm-up, 4 s work
    entries = log(
        *start(),
        (10, 1, step(2)),
        (10, 1, EvaluationStarted(2)),
        (11, 1, EvaluationFinished(2)),
        (11, 1, SaveStarted(2, Tier.STORAGE)),
        (12, 1, SaveUnblocked(2, Tier.STORAGE)),
        (14, 1, step(3)),
        (14.5, 1, SaveStarted(3, Tier.STORAGE)),
        (15, 1, FailureDetected(0, Cause.SIGNAL, "SIGKILL")),
        (18, 2, RestoreStarted()),
        (19, 2, TrainingResumed(2, Tier.STORAGE, 1)),
        (21, 2, step(3)),
        (25, 2, step(4)),
    )
    whole = split(timeline(entries))
    assert whole.wall_ns == 25 * S
    assert {k: ns / S for k, ns in whole.classes_ns().items()} == {
        "kept": 2 + 4,  # the evaluation came after step 2 was finished: it is lost with step 3
        "lost": 2 + 1,
        "startup": 3,
        "restore": 2 + 1,
        "warmup": 3 + 2,
        "save_stall": 1.5,
        "interrupted": 0.5,
        "restart": 3,
        "drain": 0,
        "down": 0,
    }
    assert {k: ns / S for k, ns in whole.coarse_ns().items()} == {
        "work": 6,
        "checkpoint": 1,
        "lost": 3 + 0.5 + 0.5,
        "restart": 3 + 3 + 5 + 3,
    }
    assert whole.goodput == 6 / 25


def test_a_run_that_has_not_begun_has_no_goodput():
    assert split(Fold()).goodput == 0.0


def test_a_billion_seconds_and_a_nanosecond_are_still_summed_exactly():
    state_ns = dict.fromkeys(Phase, 0) | {Phase.WORK: 10**18, Phase.DOWN: 1}
    assert Split(state_ns, lost_ns=1, cut_short_ns=0).classes_ns()["kept"] == 10**18 - 1
    assert Split(state_ns, lost_ns=1, cut_short_ns=0).wall_ns == 10**18 + 1


@settings(max_examples=60, deadline=None)
@given(walks())
def test_classes_and_the_coarser_view_sum_to_the_wall_time(entries: list[Entry]):
    whole = split(timeline(entries))
    assert whole.wall_ns == timeline(entries).account.wall_ns
    assert sum(whole.classes_ns().values()) == whole.wall_ns
    assert sum(whole.coarse_ns().values()) == whole.wall_ns
    assert min(*whole.classes_ns().values(), *whole.coarse_ns().values()) >= 0
    assert 0 <= whole.goodput <= 1
