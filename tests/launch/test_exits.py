"""What the exits of an attempt's ranks mean for the job."""

from hypothesis import given
from hypothesis import strategies as st

from harness.slots import Mark
from launch.exits import (
    Drained,
    Exit,
    Failed,
    Finished,
    Going,
    Judgement,
    Manner,
    ending,
    judge,
    manner,
)


def _exit(rank: int, status: int, mark: Mark | None = None, step: int | None = None) -> Exit:
    return Exit(rank, status, at_ns=rank, mark=mark, step=step)


def _judged(*exits: Exit, world_size: int = 2, joined: bool = True) -> Judgement:
    return judge({exit_.rank: exit_ for exit_ in exits}, world_size, joined=joined)


def test_nothing_is_said_before_the_first_exit():
    assert _judged() == Going()


def test_the_job_is_done_when_every_rank_says_so():
    done = _exit(0, 0, Mark.FINISHED, 40)
    assert _judged(done) == Going()
    assert _judged(done, _exit(1, 0, Mark.FINISHED, 40)) == Finished()


def test_a_crash_in_the_tear_down_after_the_last_step_is_a_warning():
    exits = (_exit(0, -11, Mark.FINISHED, 40), _exit(1, 0, Mark.FINISHED, 40))
    assert _judged(*exits) == Finished(
        "rank 0 ended with SIGSEGV in its tear-down, after the job was done"
    )


def test_an_exit_0_before_the_last_step_is_a_failure():
    early = _exit(1, 0, Mark.STEPPING, 7)
    assert _judged(early) == Failed((early,))


def test_a_script_without_the_library_is_done_when_it_exits_0():
    assert _judged(_exit(0, 0), _exit(1, 0), joined=False) == Finished()


def test_a_rank_that_left_before_it_joined_the_others_is_a_failure():
    left = _exit(1, 0)
    assert _judged(left, joined=False) == Going()
    assert _judged(left, joined=True) == Failed((left,))


def test_one_failure_is_enough_whatever_the_others_did():
    failed = _exit(1, 1, Mark.STEPPING, 7)
    assert _judged(_exit(0, 0, Mark.FINISHED, 40), failed) == Failed((failed,))


def test_ranks_that_saved_and_left_on_request_are_drained():
    exits = (_exit(0, 75, Mark.DRAINED, 12), _exit(1, 75, Mark.DRAINED, 12))
    assert _judged(exits[0]) == Going()
    assert _judged(*exits) == Drained(12)


def test_the_exit_code_75_alone_says_nothing():
    left = _exit(0, 75, Mark.STEPPING, 12)
    assert _judged(left) == Failed((left,))


def test_an_ending_is_told_as_a_code_or_a_signal():
    assert [ending(3), ending(-9), ending(-63)] == ["exit code 3", "SIGKILL", "signal 63"]


EXITS = st.builds(
    Exit,
    rank=st.just(0),
    status=st.integers(-15, 130),
    at_ns=st.integers(0),
    mark=st.none() | st.sampled_from(Mark),
    step=st.none() | st.integers(0, 100),
)


@given(EXITS, st.booleans())
def test_no_rank_that_joined_is_done_unless_it_said_so(exit_: Exit, joined: bool):
    if exit_.mark is not None and manner(exit_, joined=joined) is Manner.DONE:
        assert exit_.mark is Mark.FINISHED


@given(st.lists(EXITS, max_size=4), st.booleans())
def test_a_job_never_ends_well_while_a_rank_is_at_work(exits: list[Exit], joined: bool):
    by_rank = dict(enumerate(exits))
    judgement = judge(by_rank, len(exits) + 1, joined=joined)
    assert isinstance(judgement, Going | Failed)
