"""Kills cut into turns: none is lost, moved or brought about twice."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.goodput import KILLS_A_TURN, _turns
from benchmarks.restart import TURNS, Job, Tool
from faultinject import tape
from faultinject.tape import Choice, Exponential, Plan


@given(kills=st.integers(1, 23), seed=st.integers(0, 2**32))
def test_turns_hold_every_kill_at_its_instant_and_all_of_the_time(kills: int, seed: int):
    faults = tape.compile(Plan(Exponential(60.0), (Choice("kill"),), kills, seed=seed), 2).faults
    whole_s = faults[-1].at_s + 60.0

    turns = _turns(faults, whole_s)

    assert sum(turn.ends_s for turn in turns) == pytest.approx(whole_s)
    began_s = [0.0, *accumulate(turn.ends_s for turn in turns)]
    on_tape = [
        (start_s + at_s, rank)
        for start_s, turn in zip(began_s, turns, strict=False)
        for at_s, rank in zip(turn.at_s, turn.ranks, strict=True)
    ]
    assert [rank for _, rank in on_tape] == [fault.target.number for fault in faults]
    assert [at_s for at_s, _ in on_tape] == pytest.approx([fault.at_s for fault in faults])
    assert all(0 <= at_s <= turn.ends_s for turn in turns for at_s in turn.at_s)
    assert max(len(turn.at_s) for turn in turns) <= KILLS_A_TURN


def test_turns_of_restarts_have_all_kills_between_them():
    asked = [Job(Tool.HARNESS, 2, 50), Job(Tool.TORCHRUN, 4, 8), Job(Tool.TORCHRUN, 2, 1)]
    turns = [[job.turn(number).kills for number in range(TURNS)] for job in asked]
    assert turns == [[10, 10, 10, 10, 10], [1, 2, 1, 2, 2], [0, 0, 0, 0, 1]]
