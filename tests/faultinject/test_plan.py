import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultinject import kinds, plan, rulefile, tape, tapefile
from faultinject.rules import Kind, Nth, Operation, Rule
from faultinject.tape import AnyRank, Choice, Exponential, Instants, Plan, Rank, Uniform
from harness.checkpoint import shards
from harness.checkpoint.manifest import Place

GOOD = """
max_faults = 3
[arrival]
exponential = { mtbf_s = 40 }
[[faults]]
kind = "kill"
"""


def mistakes(text: str) -> list[str]:
    """The mistakes of a plan that has some."""
    found = all_mistakes(text.encode())
    assert found
    return found


def all_mistakes(raw: bytes) -> list[str]:
    try:
        plan.decode(raw)
    except ValueError as error:
        return str(error).split("\n")
    return []


def test_a_short_plan_has_the_defaults():
    assert plan.decode(GOOD.encode()) == Plan(
        arrival=Exponential(40.0),
        choices=(Choice("kill", 1.0, AnyRank()),),
        max_faults=3,
        seed=0,
        start_delay_s=0.0,
    )


def test_a_long_plan_is_read_whole():
    text = """
    schema = 1
    seed = -5
    max_faults = 100
    start_delay_s = 30
    [arrival]
    uniform = { min_s = 0, max_s = 9.5 }
    [[faults]]
    kind = "kill"
    weight = 2.5
    target = "rank 3"
    [[faults]]
    kind = "kill"
    """

    assert plan.decode(text.encode()) == Plan(
        Uniform(0.0, 9.5), (Choice("kill", 2.5, Rank(3)), Choice("kill")), 100, -5, 30.0
    )


def test_given_instants_end_by_themselves():
    text = GOOD.replace("max_faults = 3", "").replace(
        "exponential = { mtbf_s = 40 }", "instants = [5, 1.5]"
    )

    assert plan.decode(text.encode()).arrival == Instants((5.0, 1.5))
    assert plan.decode(text.encode()).max_faults == 2


def test_the_plan_for_users_is_a_plan():
    read = plan.read(Path("examples/faults.toml"))

    assert read == Plan(Exponential(15.0), (Choice("kill"),), 4, 225)
    assert len({fault.target for fault in tape.compile(read, 2).faults}) == 2


def test_the_rule_for_storage_in_the_example_is_one_and_is_about_shards():
    _, _, text = Path("examples/faults.toml").read_text().partition("Uncomment to use:\n")
    lines = [line.removeprefix("#") for line in text.splitlines() if line.startswith("#   ")]
    (rule,) = plan.decode("\n".join(lines).encode()).storage
    shard = f"{Place(10, 1).name}/{shards.file_name(0, 2, 0)}"
    assert [operation for operation in Operation if rule.is_about(operation, shard)] == [
        Operation.WRITE
    ]


def test_all_mistakes_come_in_one_message_a_line_each():
    text = """
    schema = 2
    seed = 1.5
    wrong = 3
    start_delay_s = inf
    [arrival]
    exponential = { mtbf_s = -40, mtbf = 4 }
    uniform = { min_s = 5, max_s = 4 }
    [[faults]]
    kind = "kil"
    target = "all ranks"
    weight = 0
    [[faults]]
    [[faults]]
    kind = "kill"
    [[faults]]
    kind = "kill"
    target = "any  rank"
    """

    assert mistakes(text) == [
        "schema = 2 must be less than or equal to 1",
        "seed = 1.5 must be a valid integer",
        "start_delay_s = inf must be a finite number",
        "arrival.exponential.mtbf_s = -40 must be greater than 0",
        "unknown key 'arrival.exponential.mtbf'; known: mtbf_s",
        "faults[1].weight = 0 must be greater than 0",
        "faults[1].target: unknown target 'all ranks'; known: any rank, rank N (N from 0)",
        "faults[2].kind is missing",
        "unknown key 'wrong'; known: schema, seed, max_faults, start_delay_s, arrival, faults, storage",
        "arrival: exactly one of exponential, uniform, instants must be given; found exponential and uniform",
        "max_faults is missing; exponential arrivals never end by themselves",
        "arrival.uniform: min_s = 5 must be below max_s = 4; for faults at known moments give instants",
        "faults[1]: unknown fault kind 'kil'; known: kill",
        "faults[4]: kill of any rank came before; add up the weights",
    ]


def test_an_empty_plan_says_what_is_missing():
    assert mistakes("") == ["arrival is missing", "faults is missing"]


def test_an_arrival_that_is_none_is_named():
    assert mistakes(GOOD.replace("exponential = { mtbf_s = 40 }", "")) == [
        "arrival: exactly one of exponential, uniform, instants must be given; found none"
    ]


@pytest.mark.parametrize("mistake", ["[arrival", "a = 1\na = 2", "x = " + "[" * 100_000, "\x00"])
def test_what_is_not_toml_is_said_to_be_so(mistake):
    assert mistakes(mistake)[0].startswith("not TOML: ")


def test_each_line_names_the_file(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text("seed = 1.5")

    with pytest.raises(ValueError, match="seed") as caught:
        plan.read(path)

    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"{path}: ") for line in lines)


def test_a_kind_is_known_as_soon_as_its_file_is_there(tmp_path, monkeypatch):
    (tmp_path / "fresh.py").write_text("ends_attempt = False")
    monkeypatch.setattr(kinds, "__path__", [*kinds.__path__, str(tmp_path)])

    assert plan.decode(GOOD.replace("kill", "fresh").encode()).choices == (Choice("fresh"),)
    assert mistakes(GOOD.replace("kill", "stale")) == [
        "faults[1]: unknown fault kind 'stale'; known: fresh, kill"
    ]


toml_values = st.sampled_from(
    [
        "1",
        "-1",
        "0",
        "1.5",
        "nan",
        "-inf",
        "1e400",
        "true",
        "'x'",
        "'kill'",
        "[]",
        "[1]",
        "{}",
        "[{}]",
        "{x=1}",
        "2020-01-01",
        "'rank 1'",
        "[nan]",
        "[true]",
        "{mtbf_s=nan}",
        "{min_s=1,max_s=true}",
        "{min_s={},max_s=1}",
        "[[1]]",
        "[{kind='kill'}]",
        "9" * 400,
        r'"a\nb"',
    ]
)
keys = st.sampled_from(
    [
        "schema",
        "seed",
        "max_faults",
        "start_delay_s",
        "arrival",
        "faults",
        "kind",
        "weight",
        "target",
        "exponential",
        "uniform",
        "instants",
        "mtbf_s",
        '"a\\nb"',
        '""',
    ]
)
heads = st.sampled_from(["", "[arrival]", "[[faults]]", "[arrival.exponential]", "[faults]"])
tables = st.lists(
    st.tuples(heads, st.lists(st.tuples(keys, toml_values), max_size=4)), max_size=4
).map(
    lambda parts: "\n".join(
        "\n".join([head, *(f"{key} = {value}" for key, value in pairs)]) for head, pairs in parts
    )
)


@given(st.binary() | tables.map(str.encode))
def test_no_garbage_gives_anything_but_a_message(raw):
    assert all(line.strip() for line in all_mistakes(raw))


@given(tables)
def test_every_table_that_is_toml_gets_one_line_for_each_mistake(text):
    try:
        tomllib.loads(text)
    except ValueError:
        return
    found = all_mistakes(text.encode())
    assert all(line.strip() and "pydantic" not in line for line in found)
    assert len(set(found)) == len(found)


# ── rules for storage ───────────────────────────────────────────────────────────────────────────

STORAGE = """
[[storage]]
kind = "eio"
operations = ["create"]
name = "*/commit.json"
nth = 2
[[storage]]
kind = "enospc"
after_bytes = 1000
most = 1
"""
RULES = (
    Rule(Kind.EIO, (Operation.CREATE,), "*/commit.json", Nth(2)),
    Rule(Kind.ENOSPC, (Operation.CREATE, Operation.WRITE), most=1, after_bytes=1000),
)


def test_storage_may_misbehave_beside_other_faults_and_alone():
    both = plan.decode((GOOD + STORAGE).encode())
    alone = plan.decode(STORAGE.encode())
    assert both == replace(plan.decode(GOOD.encode()), storage=RULES)
    assert alone == Plan(Instants(()), (), 0, storage=RULES)
    assert tape.compile(both, 2).faults == tape.compile(plan.decode(GOOD.encode()), 2).faults
    assert tape.compile(alone, 2).faults == ()
    assert tape.digest(both) != tape.digest(replace(both, storage=RULES[:1]))


def test_mistakes_in_rules_for_storage_are_named_by_their_place():
    text = (
        STORAGE
        + """
    [[storage]]
    kind = "eio"
    operations = ["create"]
    name = "*/commit.json"
    [[storage]]
    kind = "bitflip"
    nht = 3
    """
    )
    assert mistakes(text) == [
        "storage[3]: eio of create */commit.json came before; each kind, operation and name once",
        "storage[4]: unknown key 'nht'; known: " + ", ".join(rulefile.KEYS),
        "storage[4]: unknown kind 'bitflip'; known: " + ", ".join(sorted(Kind)),
    ]


def test_arrivals_without_faults_are_a_mistake_though_storage_misbehaves():
    assert mistakes(STORAGE + "[arrival]\ninstants = [1]") == [
        "faults is missing; arrival says when they come, and not when storage misbehaves"
    ]


def test_a_tape_keeps_the_rules_for_storage_and_is_refused_if_one_was_cut():
    made = tape.compile(plan.decode((GOOD + STORAGE).encode()), 2)
    raw = tapefile.encode(made).encode()
    assert tapefile.decode(raw) == made
    lines = raw.splitlines(keepends=True)
    assert lines[0].startswith(b'{"schema": 2')
    with pytest.raises(ValueError, match="the tape was cut or edited"):
        tapefile.decode(b"".join(lines[:-1]))
    with pytest.raises(ValueError, match="line 6: unknown kind 'eoi'"):
        tapefile.decode(b"".join([*lines[:-1], lines[-1].replace(b"enospc", b"eoi")]))
