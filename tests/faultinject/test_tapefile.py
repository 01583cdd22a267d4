import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultinject import tape, tapefile
from faultinject.tape import Choice, Exponential, Plan

TAPE = tape.compile(Plan(Exponential(60), (Choice("kill"),), 3, seed=7), 2)
HEADER = '{"schema":1,"seed":7,"plan":"abc","world_size":2,"faults":1}\n'
FAULT = '{"id":"f1","at_s":1.5,"kind":"kill","target":"rank 1"}\n'


def refusal(text: str) -> str:
    with pytest.raises(ValueError, match="line ") as caught:
        tapefile.decode(text.encode())
    return str(caught.value)


def answer(raw: bytes) -> str:
    """What becomes of `raw`: a refusal, or the line on which it was all right."""
    try:
        return f"line {len(tapefile.decode(raw).faults) + 1} was good"
    except ValueError as error:
        return str(error)


def test_a_tape_is_a_header_and_a_line_for_each_fault():
    plan = Plan(tape.Instants((1.5,)), (Choice("kill", target=tape.Rank(1)),), 1, seed=7)
    made = tape.compile(plan, 2)

    assert [json.loads(line) for line in tapefile.encode(made).splitlines()] == [
        {"schema": 1, "seed": 7, "plan": tape.digest(plan), "world_size": 2, "faults": 1},
        {"id": "f1", "at_s": 1.5, "kind": "kill", "target": "rank 1"},
    ]


@given(
    st.floats(0.001, 1e9),
    st.integers(-(2**70), 2**70),
    st.integers(0, 30),
    st.integers(1, 10**6),
    st.text(min_size=1),
)
def test_a_tape_reads_as_it_was_written(mtbf_s, seed, count, ranks, kind):
    made = tape.compile(Plan(Exponential(mtbf_s), (Choice(kind),), count, seed), ranks)

    assert tapefile.decode(tapefile.encode(made).encode()) == made


def test_a_tape_file_is_replaced_whole(tmp_path):
    path = tmp_path / "tape.jsonl"
    path.write_text("old")

    tapefile.write(path, TAPE)

    assert tapefile.read(path) == TAPE
    assert list(tmp_path.iterdir()) == [path]


def test_a_mistake_names_the_file_and_the_line(tmp_path):
    path = tmp_path / "tape.jsonl"
    path.write_text(HEADER + "{\n")

    with pytest.raises(ValueError, match=r"tape\.jsonl: line 2: not JSON"):
        tapefile.read(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: empty; a tape begins with a header"),
        ("[]\n", "line 1: a list is not a JSON object"),
        (HEADER, "line 1: the header promises 1 faults and here are 0"),
        (HEADER + FAULT + FAULT, "line 3: id 'f1' came before"),
        (HEADER + FAULT.replace("rank 1", "rank 2"), "line 2: 'rank 2' does not exist at 2 ranks"),
        (HEADER + FAULT.replace("rank 1", "any rank"), "line 2: 'any rank' must be drawn"),
        (HEADER + FAULT.replace("rank 1", "gpu 1"), "line 2: unknown target 'gpu 1'; known: any"),
        (HEADER + FAULT.replace("1.5", "-1"), "line 2: at_s = -1 is not a number of seconds"),
        (HEADER + FAULT.replace("1.5", "NaN"), "line 2: at_s = nan is not a number of seconds"),
        (HEADER + FAULT.replace("1.5", "1" + "0" * 400), "line 2: at_s = 1000"),
        (HEADER + FAULT.replace("1.5", "true"), "line 2: at_s = True is not a number of seconds"),
        (HEADER.replace('"schema":1', '"schema":3') + FAULT, "line 1: schema 3 is newer than 2"),
        (HEADER.replace('"world_size":2', '"world_size":0'), "line 1: world_size = 0 is below 1"),
        (HEADER.replace('"seed":7', '"seed":"x"') + FAULT, "line 1: seed = 'x' is not a whole num"),
        (HEADER + "[" * 100_000, "line 2: not JSON"),
        (
            HEADER.replace('"faults":1', '"faults":2')
            + FAULT
            + FAULT.replace("f1", "f2", 1).replace("1.5", "1"),
            "line 3: at_s = 1.0 comes after 1.5; sort by at_s",
        ),
    ],
)
def test_what_is_no_tape_is_refused_with_its_line(text, message):
    assert refusal(text).startswith(message)


def test_unknown_fields_of_a_later_writer_are_ignored():
    text = HEADER.replace('"seed"', '"new":1,"seed"') + FAULT.replace('"id"', '"new":[],"id"')

    assert tapefile.decode(text.encode()).faults[0].id == "f1"


@given(st.data())
def test_a_tape_cut_anywhere_is_refused(data):
    whole = tapefile.encode(TAPE).encode()
    cut = data.draw(st.integers(0, len(whole) - 2))

    with pytest.raises(ValueError, match="line"):
        tapefile.decode(whole[:cut])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=3,
)
fields = st.sampled_from(
    ["schema", "seed", "plan", "world_size", "faults", "id", "at_s", "kind", "target"]
)


@given(
    st.binary()
    | st.lists(st.dictionaries(fields, json_values), max_size=3).map(
        lambda lines: "\n".join(map(json.dumps, lines)).encode()
    )
)
def test_no_garbage_gives_anything_but_a_refusal_with_a_line(raw):
    assert answer(raw).startswith("line ")


@given(st.data(), json_values)
def test_no_damaged_value_gives_anything_but_a_refusal_with_a_line(data, value):
    lines = [json.loads(line) for line in tapefile.encode(TAPE).splitlines()]
    line = data.draw(st.sampled_from(lines))
    line[data.draw(st.sampled_from(sorted(line)))] = value

    assert answer("\n".join(map(json.dumps, lines)).encode()).startswith("line ")
