"""A plan for people, where tests of the command do not go: at bounds, and of storage alone."""

import pytest

from faultinject import tape
from faultinject.rules import Kind, Nth, Operation, Rule
from faultinject.show import MOST_LINES, rendered
from faultinject.tape import Choice, Instants, Plan, Uniform


@pytest.mark.parametrize(("count", "more"), [(0, []), (1, ["… and 1 more"])])
def test_as_many_faults_as_fit_are_listed_whole(count: int, more: list[str]):
    plan = Plan(Uniform(1, 2), (Choice("kill"),), MOST_LINES + count, seed=1)
    told = rendered(plan, tape.compile(plan, 2)).splitlines()
    listed = told[told.index("id          at    gap  kind  target") + 1 : told.index("", 6)]
    assert len(listed) == MOST_LINES + len(more)
    assert listed[MOST_LINES:] == more


def test_a_plan_for_storage_alone_lists_its_rules():
    rule = Rule(Kind.EIO, (Operation.WRITE,), "step-*/shard-*", Nth(3), most=1)
    plan = Plan(Instants(()), (), 0, seed=7, storage=(rule,))
    made = tape.compile(plan, 2)
    assert rendered(plan, made).splitlines() == [
        f"0 faults and 1 rules for storage for 2 ranks, seed 7; plan {made.plan}",
        "Time 0 is the run's first committed save. A fault whose target is down waits for it.",
        "",
        "Storage behind chaos::, all processes of the run counted together:",
        "",
        "s1  eio: write step-*/shard-*, call 3, 1 times at most",
    ]
