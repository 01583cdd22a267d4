from harness.events import StepTimed
from harness.signals.straggler import COMPARED, Lag
from harness.signals.tally import Episode, Stragglers

MS = 1_000_000
S = 1_000_000_000
KEEP = 4


def timed(step: int, own: int, wait: int = 0, data: int = 0, steps: int = 1) -> StepTimed:
    return StepTimed(step, own * MS, wait * MS, data * MS, (own - data) * MS, steps)


def going(ranks: int = 2) -> Stragglers:
    tally = Stragglers()
    tally.resume(ranks, 0)
    for rank in range(ranks):  # a first step, which warms up
        tally.time(rank, timed(1, 900 - rank), 0, KEEP)
    return tally


def go_on(tally: Stragglers, steps: range, *own: int, data: int = 0) -> None:
    for step in steps:
        for rank, ms in enumerate(own):
            slow = data if rank == 1 else 0
            tally.time(rank, timed(step, ms + slow, data=slow), step * S, KEEP)


def test_the_first_step_of_an_attempt_is_shown_and_counts_for_nothing():
    tally = going()
    assert (tally.compared, tally.waited_ns, tally.watch.window) == (0, 0, [])
    assert tally.last is not None
    assert tally.last.late_ns == [MS, 0]


def test_the_wait_for_the_slowest_adds_up_over_all_steps():
    tally = going()
    tally.time(0, timed(9, 100, steps=8), 0, KEEP)
    tally.time(1, timed(9, 130, steps=8), 0, KEEP)
    assert tally.waited_ns == 8 * 30 * MS
    assert tally.last is not None
    assert tally.last.late_ns == [0, 30 * MS]


def test_ranks_that_tell_of_other_numbers_of_steps_are_compared_where_they_meet():
    tally = going()
    tally.time(1, timed(4, 10, steps=3), 0, KEEP)
    tally.time(1, timed(8, 30, steps=4), 0, KEEP)
    assert tally.compared == 0
    tally.time(0, timed(8, 10, steps=7), 0, KEEP)
    assert tally.compared == 1
    assert tally.last is not None
    assert tally.last.late_ns == [0, (3 * 10 + 4 * 30) * MS // 7 - 10 * MS]
    assert tally.told == {}


def test_a_straggler_is_named_and_let_go_with_times_and_cause():
    tally = going()
    go_on(tally, range(2, COMPARED + 2), 100, 100, data=50)
    named = Episode(1, Lag.DATA, 41, 41 * S, None, 50 * MS, 0.5)
    assert tally.standing == [named]
    assert tally.named == 1
    go_on(tally, range(COMPARED + 2, COMPARED + 30), 100, 100)
    assert tally.standing == []
    assert [one.rank for one in tally.episodes] == [1]
    assert tally.episodes[0].until_ns == (COMPARED + 2 + 19) * S


def test_a_new_attempt_begins_to_watch_anew():
    tally = going()
    go_on(tally, range(2, COMPARED + 2), 100, 150)
    waited_ns = tally.waited_ns
    tally.resume(2, 99 * S)
    assert tally.standing == []
    assert tally.episodes[0].until_ns == 99 * S
    assert (tally.last, tally.watch.window, tally.waited_ns) == (None, [], waited_ns)


def test_all_ranks_slow_is_no_rank_s_fault():
    tally = going(3)
    go_on(tally, range(2, COMPARED + 2), 100, 100, 100)
    assert not tally.is_slow
    go_on(tally, range(COMPARED + 2, 2 * COMPARED + 2), 200, 200, 200)
    assert tally.is_slow
    assert tally.reference.slowdown == 2.0
    assert (tally.slow_blocks, tally.blocks, tally.standing) == (1, 2, [])


def test_an_older_log_does_not_say_what_a_rank_was_slow_at():
    tally = going()
    for step in range(2, COMPARED + 2):
        tally.time(0, StepTimed(step, 100, 50), 0, KEEP)
        tally.time(1, StepTimed(step, 150, 0), 0, KEEP)
    assert [one.lag for one in tally.standing] == [Lag.COMPUTE]


def test_what_no_rank_of_the_attempt_can_have_said_is_left_out():
    tally = going()
    tally.time(7, timed(2, 1), 0, KEEP)
    tally.time(0, StepTimed(2, 1, 1, steps=0), 0, KEEP)
    assert tally.told == {}
