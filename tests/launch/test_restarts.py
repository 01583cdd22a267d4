"""Whether a job that failed is started again."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from harness.events import Cause
from launch.restarts import NS, Decision, Failure, Limits, decide

LIMITS = Limits(restarts=3, window_ns=100 * NS)
KILLED = Failure(1, 0, Cause.SIGNAL, "", lasted_ns=NS, began=True, step=10)
IMPORT = Failure(1, 0, Cause.EXCEPTION, "ImportError: numpi", NS, began=None, step=None)
DIVIDED = Failure(1, 0, Cause.EXCEPTION, "ZeroDivisionError at t.py:3", NS, began=True, step=41)


def _at(failure: Failure, *seconds: float, first_step: int | None = None) -> list[Failure]:
    """`failure` at each of these times, each time further if `first_step` is given."""
    return [
        replace(
            failure,
            attempt=index + 1,
            at_ns=int(second * NS),
            step=failure.step if first_step is None else first_step + index,
        )
        for index, second in enumerate(seconds)
    ]


def _after(history: Sequence[Failure], limits: Limits = LIMITS) -> Decision:
    return decide(history, history[-1].at_ns, limits)


def test_a_killed_rank_is_started_again_and_told_how_often_it_may_be():
    assert _after(_at(KILLED, 5)) == Decision(True, "restart 1 of 3 within 100 s")


def test_the_budget_allows_exactly_n_restarts():
    kills = _at(KILLED, 1, 2, 3, 4, first_step=10)
    assert [_after(kills[:count]).restart for count in (1, 2, 3, 4)] == [True, True, True, False]
    assert _after(kills).reason == (
        "all 3 restarts within 100 s are used up: launch it again to go on, or allow more by"
        " --max-restarts"
    )


def test_restarts_before_the_window_do_not_count():
    kills = _at(KILLED, 1, 2, 3, 150, first_step=10)
    assert _after(kills) == Decision(True, "restart 1 of 3 within 100 s")


def test_without_restarts_the_first_failure_is_the_last():
    assert _after(_at(KILLED, 1), replace(LIMITS, restarts=0)) == Decision(
        False, "no restarts are allowed (--max-restarts 0)"
    )


def test_an_import_error_is_tried_once_more_and_no_more():
    assert _after(_at(IMPORT, 1)).restart
    assert _after(_at(IMPORT, 1, 2)) == Decision(
        False,
        "it cannot start: 2 attempts ended before a step in this same way: mend that, and launch it"
        " again",
    )


def test_two_different_errors_at_the_start_are_two_accidents():
    first, second = _at(IMPORT, 1, 2)
    assert _after([first, replace(second, signature="OSError: busy")]).restart


def test_an_error_at_the_same_step_ends_the_job_before_its_budget():
    wide = replace(LIMITS, restarts=100)
    assert _after(_at(DIVIDED, 1, 2), wide).restart
    assert _after(_at(DIVIDED, 1, 2, 3), wide) == Decision(
        False,
        "same step, no progress: 3 attempts ended after step 41, the last with ZeroDivisionError at"
        " t.py:3: the program or its data are at fault; mend that, and launch it again",
    )


def test_the_same_error_at_other_steps_is_no_sign_of_a_mistake():
    assert _after(_at(DIVIDED, 1, 2, 3, first_step=41), replace(LIMITS, restarts=100)).restart


def test_kills_at_the_same_step_are_chance():
    assert _after(_at(KILLED, 1, 2, 3), replace(LIMITS, restarts=100)).restart


def test_a_storm_that_lets_no_attempt_get_further_ends_with_that_reason():
    wide = replace(LIMITS, restarts=100, fruitless=4)
    assert _after(_at(KILLED, 1, 2, 3, 4), wide).restart
    assert _after(_at(KILLED, 1, 2, 3, 4, 5), wide) == Decision(
        False,
        "no progress: 4 attempts in a row did not get past step 10: what ends them comes sooner than"
        " a restart and the steps up to a save take; find it, or save more often",
    )
    never = _at(replace(KILLED, began=False, step=None), 1, 2, 3, 4)
    assert _after(never, wide).reason.startswith(
        "no progress: 4 attempts in a row did not get to a first step: "
    )


def test_progress_forgives_what_came_before_it():
    wide = replace(LIMITS, restarts=100, fruitless=3)
    history = _at(KILLED, 1, 2, 3) + _at(replace(KILLED, step=11), 4, 5)
    assert _after(history, wide).restart


def test_kills_of_a_script_whose_steps_nobody_knows_are_left_to_the_budget():
    wide = replace(LIMITS, restarts=100, fruitless=3)
    assert _after(_at(replace(KILLED, began=None, step=None), *range(1, 20)), wide).restart


def test_the_same_error_after_a_while_is_no_failure_to_start():
    hour = replace(IMPORT, lasted_ns=3600 * NS)
    assert _after(_at(hour, 1, 2)).restart


def test_preemptions_and_failures_do_not_draw_on_each_other_s_budget():
    told = replace(KILLED, cause=Cause.PREEMPTION)
    tight = replace(LIMITS, restarts=2, preemptions=5)
    preempted = _at(told, 1, 2, 3, 4, 5, first_step=10)
    assert _after(preempted, tight) == Decision(
        True, "restart after preemption 5 of 5 within 100 s"
    )
    failed = [*preempted, *_at(replace(KILLED, step=20), 6)]
    assert _after(failed, tight) == Decision(True, "restart 1 of 2 within 100 s")
    sixth = [*preempted, *_at(replace(told, step=20), 6)]
    assert _after(sixth, tight) == Decision(
        False,
        "all 5 restarts after preemptions within 100 s are used up: launch it again to go on, or"
        " allow more by --max-preemptions",
    )


def test_what_is_our_own_fault_draws_on_no_budget():
    lost = replace(KILLED, cause=Cause.HELPER)
    history = _at(lost, 1, 2, 3, 4, 5, first_step=10)
    assert _after(history) == Decision(True, "restart that counts against no budget")
    assert _after([*history, *_at(replace(KILLED, step=30), 6)]) == Decision(
        True, "restart 1 of 3 within 100 s"
    )


def test_fork_servers_that_cannot_live_end_a_job_whose_steps_nobody_knows_too():
    lost = replace(KILLED, cause=Cause.HELPER, began=None, step=None)
    assert _after(_at(lost, *range(9))).restart
    assert _after(_at(lost, *range(10))).reason.startswith(
        "no progress: 10 attempts in a row did not get to a first step"
    )


def test_attempts_without_progress_are_waited_between_ever_longer():
    wide = replace(LIMITS, restarts=100, first_wait_s=1.0, most_wait_s=5.0)
    kills = _at(KILLED, *range(1, 8))
    waits = [_after(kills[:count], wide).wait_s for count in range(1, 8)]
    assert waits == [0.0, 0.0, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert _after(kills[:4], wide).reason == (
        "restart 4 of 100 within 100 s, in 2 s: 3 attempts in a row made no progress"
    )


def test_nobody_waits_where_progress_was_made():
    further = _at(KILLED, *range(1, 10), first_step=10)
    wide = replace(LIMITS, restarts=100)
    assert {_after(further[:count], wide).wait_s for count in range(1, 10)} == {0.0}


def test_three_mistakes_at_one_step_are_one_though_they_look_different():
    wide = replace(LIMITS, restarts=100)
    one, two, three = _at(DIVIDED, 1, 2, 3)
    history = [one, replace(two, signature="CUDA error 0x7f3a"), replace(three, signature="again")]
    assert _after(history, wide).reason.startswith(
        "same step, no progress: 3 attempts ended after step 41, the last with again"
    )


def test_a_kill_between_mistakes_at_one_step_is_no_progress():
    wide = replace(LIMITS, restarts=100)
    one, two, three = _at(DIVIDED, 1, 2, 4)
    history = [one, two, replace(KILLED, at_ns=3 * NS, step=41), three]
    assert not _after(history, wide).restart


def test_hangs_and_lack_of_memory_may_be_chance_twice_wherever_they_happen():
    wide = replace(LIMITS, restarts=100)
    hung = replace(KILLED, cause=Cause.HANG, signature="a hang in its set-up", began=False, step=0)
    assert _after(_at(hung, 1, 2), wide).restart
    assert _after(_at(hung, 1, 2, 3), wide).reason.startswith("it cannot start: 3 attempts ended")
    killed_for_memory = replace(KILLED, cause=Cause.OOM)
    assert _after(_at(killed_for_memory, 1, 2), wide).restart
    assert _after(_at(killed_for_memory, 1, 2, 3), wide).reason.startswith(
        "same step, no progress: 3 attempts ended after step 10, the last with oom"
    )


def test_an_error_at_the_start_of_a_job_that_ran_for_hours_before_is_a_first_one():
    ran = replace(IMPORT, lasted_ns=3600 * NS)
    assert _after([*_at(ran, 1), *_at(IMPORT, 2)]).restart


FAILURES = st.builds(
    Failure,
    attempt=st.integers(1, 50),
    at_ns=st.integers(0, 1000 * NS),
    cause=st.sampled_from(Cause),
    signature=st.sampled_from(["", "a", "b"]),
    lasted_ns=st.integers(0, 100 * NS),
    began=st.none() | st.booleans(),
    step=st.none() | st.integers(0, 5),
)


@given(
    st.lists(FAILURES, min_size=1, max_size=40),
    st.integers(0, 5),
    st.integers(1, 500),
)
def test_no_window_ever_holds_more_restarts_than_allowed(
    failures: list[Failure], restarts: int, window_s: int
):
    limits = Limits(restarts, window_s * NS)
    history: list[Failure] = []
    restarted_at: list[int] = []
    for failure in sorted(failures, key=lambda failure: failure.at_ns):
        history.append(failure)
        if not decide(history, failure.at_ns, limits).restart:
            break
        if failure.cause not in (Cause.PREEMPTION, Cause.HELPER):
            restarted_at.append(failure.at_ns)
    for at_ns in restarted_at:
        within = [other for other in restarted_at if at_ns - limits.window_ns < other <= at_ns]
        assert len(within) <= restarts


@given(st.lists(FAILURES, min_size=1, max_size=40))
def test_a_refusal_always_says_why(failures: list[Failure]):
    history = sorted(failures, key=lambda failure: failure.at_ns)
    assert decide(history, history[-1].at_ns, LIMITS).reason


@given(st.lists(FAILURES, min_size=1, max_size=40))
def test_waits_stay_below_their_cap_and_none_follows_progress(failures: list[Failure]):
    history = sorted(failures, key=lambda failure: failure.at_ns)
    decision = decide(history, history[-1].at_ns, replace(LIMITS, restarts=100, fruitless=100))
    assert 0 <= decision.wait_s <= LIMITS.most_wait_s
    best = max((it.step for it in history[:-1] if it.began and it.step is not None), default=-1)
    last = history[-1]
    if last.began and last.step is not None and last.step > best:
        assert decision.wait_s == 0


@given(st.integers(1, 60), st.integers(1, 5))
def test_preemptions_that_make_progress_never_end_a_job_within_their_budget(
    count: int, restarts: int
):
    told = replace(KILLED, cause=Cause.PREEMPTION)
    history = _at(told, *range(count), first_step=1)
    assert _after(history, Limits(restarts, 1000 * NS, preemptions=60)).restart


@given(st.lists(FAILURES, min_size=1, max_size=40))
def test_a_storm_ends(failures: list[Failure]):
    storm = [replace(failure, began=False, at_ns=index) for index, failure in enumerate(failures)]
    if len(storm) >= LIMITS.fruitless:
        assert not decide(storm, storm[-1].at_ns, replace(LIMITS, restarts=1000)).restart
