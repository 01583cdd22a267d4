from hypothesis import given
from hypothesis import strategies as st

from harness.checkpoint.policy import Answer, Decision, Progress, Saved, decide, due, surplus


def saved(*steps: int, attempt: int = 1, sound: bool = True) -> list[Saved]:
    return [Saved(step, attempt, f"step-{step:08d}-{attempt}", sound) for step in steps]


def test_saves_fall_due_every_so_many_steps():
    assert [step for step in range(1, 10) if due(step, 3)] == [3, 6, 9]
    assert not any(due(step, 0) for step in range(100))


def test_one_save_is_in_flight_and_the_next_waits_for_it():
    progress = Progress(writing_step=10, writing_s=3.0)
    said = Decision(Answer.WAIT, "the save of step 10 is in flight")

    assert decide(20, progress, force=False, stuck_s=60) == said
    assert decide(20, progress, force=True, stuck_s=60) == said
    assert decide(20, Progress(durable_step=10), force=False, stuck_s=60).answer is Answer.GO


def test_a_save_that_never_ends_is_not_waited_for():
    stuck = Progress(writing_step=10, writing_s=60.0)
    said = Decision(Answer.GIVE_UP, "the save of step 10 has not ended for 60 s")

    assert decide(20, stuck, force=True, stuck_s=60) == said
    assert decide(20, stuck, force=False, stuck_s=60) == said


def test_a_saver_that_is_not_there_is_waited_for_and_not_for_ever():
    said = Decision(Answer.WAIT, "the saver is not there")
    for_good = "the ranks of this attempt save by themselves"

    assert decide(20, Progress(absent_s=59.9), force=False, stuck_s=600) == said
    assert decide(20, Progress(absent_s=9.9), force=True, stuck_s=600) == said
    assert decide(20, Progress(absent_s=60), force=False, stuck_s=600) == Decision(
        Answer.ALONE, f"the saver has not been there for 60 s: {for_good}"
    )
    assert decide(20, Progress(absent_s=10), force=True, stuck_s=600) == Decision(
        Answer.ALONE, f"the saver has not been there for 10 s: {for_good}"
    )
    have = Progress(durable_step=20, absent_s=60)
    assert decide(20, have, force=True, stuck_s=600).answer is Answer.HAVE


def test_the_last_state_is_not_saved_twice():
    assert decide(20, Progress(durable_step=20), force=True, stuck_s=60).answer is Answer.HAVE
    assert decide(20, Progress(writing_step=20), force=True, stuck_s=60).answer is Answer.WAIT


def test_the_newest_are_kept_by_number_and_not_by_text():
    steps = saved(9800, 9900, 10000, 99_999_999, 100_000_000)

    assert surplus(steps[:3], [], keep=2) == steps[:1]
    assert surplus(steps[:3], [], keep=1) == steps[:2]
    assert surplus(steps, [], keep=2) == steps[:3]


def test_what_is_damaged_never_takes_the_place_of_a_good_one():
    good, bad = saved(10, 20), saved(30, 40, sound=False)

    assert list(surplus(good + bad, [], keep=2)) == []
    assert surplus(good + bad, [], keep=1) == saved(10)
    assert list(surplus(bad, saved(5), keep=1)) == []


def test_one_of_the_newest_that_cannot_be_read_just_now_is_left_where_it_is():
    assert list(surplus(saved(10, sound=False) + saved(20, 30), [], keep=3)) == []
    assert list(surplus(saved(10, sound=False) + saved(20, 30), [], keep=2)) == saved(
        10, sound=False
    )


def test_what_is_off_the_chain_goes_once_a_later_attempt_has_its_own():
    zombie = saved(30, attempt=1)

    assert list(surplus(saved(20, attempt=1), zombie, keep=3)) == []
    later = saved(20, attempt=1) + saved(25, attempt=2)
    assert list(surplus(later, zombie, keep=3)) == zombie


@given(
    st.lists(st.builds(Saved, st.integers(0, 40), st.integers(1, 4), st.just("n"), st.booleans())),
    st.lists(
        st.builds(Saved, st.integers(0, 40), st.integers(1, 4), st.just("off"), st.just(False))
    ),
    st.integers(1, 5),
)
def test_the_newest_sound_ones_always_survive(on_chain, off_chain, keep):
    gone = list(surplus(on_chain, off_chain, keep))
    sound = sorted(saved for saved in on_chain if saved.sound)

    assert not set(gone) & set(sound[-keep:])
    if not sound:
        assert gone == []
    assert gone == sorted(gone)
