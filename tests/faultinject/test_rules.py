import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultinject import rulefile
from faultinject.rules import SUITS, Chance, From, Kind, Nth, Operation, Rule

COUNT = st.integers(1, 1 << 60)
WHEN = st.one_of(COUNT.map(Nth), COUNT.map(From), st.floats(0, 1, exclude_min=True).map(Chance))


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    kind = draw(st.sampled_from(list(Kind)))
    timed = kind in (Kind.HANG, Kind.LATENCY, Kind.STALE)
    return Rule(
        kind,
        tuple(draw(st.lists(st.sampled_from(SUITS[kind]), min_size=1, unique=True))),
        draw(st.text(min_size=1)),
        draw(WHEN),
        draw(st.none() | COUNT),
        draw(st.integers(0, 1 << 60)) if kind is Kind.ENOSPC else 0,
        draw(st.floats(0.001, 1e6)) if timed else 0.0,
    )


def spoilt(rule: Rule, calls: int, seed: int = 0) -> list[int]:
    """Which of so many calls a rule spoils."""
    found: list[int] = []
    for call in range(1, calls + 1):
        if rule.is_due(seed, call, len(found)):
            found.append(call)
    return found


@given(rules())
def test_a_rule_reads_as_it_was_written(rule):
    assert rulefile.read(json.loads(json.dumps(rulefile.table(rule)))) == rule


def test_a_short_table_has_the_defaults():
    assert rulefile.read({"kind": "eio"}) == Rule(Kind.EIO, tuple(Operation))
    assert rulefile.read({"kind": "hang", "operations": ["list"], "nth": 2}) == Rule(
        Kind.HANG, (Operation.LIST,), when=Nth(2), seconds=3600.0
    )


@pytest.mark.parametrize(
    ("rule", "calls"),
    [
        (Rule(Kind.EIO, (Operation.READ,), when=Nth(3)), [3]),
        (Rule(Kind.EIO, (Operation.READ,), when=From(4)), [4, 5, 6]),
        (Rule(Kind.EIO, (Operation.READ,)), [1, 2, 3, 4, 5, 6]),
        (Rule(Kind.EIO, (Operation.READ,), when=From(2), most=2), [2, 3]),
        (Rule(Kind.EIO, (Operation.READ,), when=Chance(1.0)), [1, 2, 3, 4, 5, 6]),
    ],
)
def test_calls_are_spoilt_by_their_number(rule, calls):
    assert spoilt(rule, 6) == calls


def test_by_probability_a_rule_spoils_its_share_and_the_same_calls_each_time():
    rule = Rule(Kind.EIO, (Operation.READ,), when=Chance(0.2))
    first = spoilt(rule, 10_000, seed=1)
    assert 1_850 < len(first) < 2_150
    assert spoilt(rule, 10_000, seed=1) == first
    assert spoilt(rule, 10_000, seed=2) != first
    other = Rule(Kind.EIO, (Operation.READ,), name="*.json", when=Chance(0.2))
    assert spoilt(other, 10_000, seed=1) != first


def test_a_rule_is_about_its_operations_and_names_alone():
    rule = Rule(Kind.EIO, (Operation.CREATE, Operation.WRITE), name="*/commit.json")
    assert rule.is_about(Operation.CREATE, "step-00000003-1/commit.json")
    assert not rule.is_about(Operation.READ, "step-00000003-1/commit.json")
    assert not rule.is_about(Operation.CREATE, "step-00000003-1/manifest.json")


def test_all_mistakes_of_a_table_come_at_once():
    table = {"kind": "stale", "operations": ["read"], "nth": 0, "probability": 2, "wenn": 3}
    with pytest.raises(ValueError, match="unknown key 'wenn'") as caught:
        rulefile.read(table)
    assert str(caught.value).splitlines() == [
        "unknown key 'wenn'; known: " + ", ".join(rulefile.KEYS),
        "nth = 0 is not a count from 1 up",
        "probability = 2 is not above 0 and at most 1",
        "nth and probability exclude each other",
        "stale cannot happen to 'read'; known for it: list",
        "seconds is missing; stale needs it",
    ]


@pytest.mark.parametrize(
    ("table", "mistake"),
    [
        ({}, "kind is missing; known: bit_flip, eio, enospc, hang, latency"),
        ({"kind": "eoi"}, "unknown kind 'eoi'; known: bit_flip"),
        ({"kind": "enospc"}, "after_bytes is missing"),
        ({"kind": "eio", "after_bytes": 1}, "after_bytes means nothing to eio"),
        ({"kind": "eio", "seconds": 1}, "seconds means nothing to eio; it is for hang"),
        ({"kind": "eio", "name": ""}, "name = '' is not a pattern"),
        ({"kind": "eio", "operations": []}, "operations = [] is not a list of operations"),
        ({"kind": "latency", "seconds": float("inf")}, "seconds = inf is not a time above 0"),
        ({"kind": "eio", "most": True}, "most = True is not a count from 1 up"),
    ],
)
def test_what_is_no_rule_is_refused(table, mistake):
    with pytest.raises(ValueError, match=mistake.split(" ")[0]) as caught:
        rulefile.read(table)
    assert mistake in str(caught.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(rulefile.KEYS) | st.text(), inner, max_size=6)
        ),
    ).filter(lambda it: isinstance(it, dict))
)
def test_any_table_is_a_rule_or_has_its_mistakes_named(table):
    try:
        assert isinstance(rulefile.read(table), Rule)
    except ValueError as error:
        assert str(error)  # noqa: PT017
