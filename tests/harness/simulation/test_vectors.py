"""The simulator against reference outputs of the textbook loop, run in another language."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness.goodput import split
from harness.phases import Phase
from harness.simulation.draws import mulberry32
from harness.simulation.failures import Renewal
from harness.simulation.job import SimulatedJob
from harness.simulation.laws import Exponential
from harness.simulation.loop import Costs, walk
from harness.simulation.options import Options
from harness.simulation.vectors import differences, read, simulated, stream_agrees
from harness.timeline import timeline

VECTORS = Path(__file__).with_name("vectors.json")
FILE = json.loads(VECTORS.read_text())


def test_the_generator_gives_the_same_numbers():
    streams = read(VECTORS).streams
    assert sorted(streams) == [0, 1, 2, 20, 42, 123456789, 4294967295]
    assert all(stream_agrees(seed, told) for seed, told in streams.items())
    assert not stream_agrees(3, streams[2])


def test_the_loop_gives_the_same_runs():
    rows = read(VECTORS).rows
    found = {row.name: list(differences(row.told, simulated(row), 1e-12)) for row in rows}
    assert len(found) == 90
    assert not any(found.values()), found


def test_a_row_that_differs_is_told_apart():
    row = read(VECTORS).rows[0]
    wrong = {**row.told, "failures": 407, "end_s": row.told["end_s"] * (1 + 1e-11)}
    assert list(differences(wrong, simulated(row), 1e-12)) == [
        "failures is 408, the file says 407",
        f"end_s is {row.told['end_s']!r}, the file says {wrong['end_s']!r}",
    ]
    short = {"count": {"work": 28697}, "first5_failures_s": row.told["first5_failures_s"][:4]}
    assert len(list(differences(short, simulated(row), 1e-12))) == 2


def test_a_day_is_that_of_the_vectors_segment_by_segment():
    day = FILE["one_day_seed1_tau16min"]
    params = day["params"]
    costs = Costs(params["tau"], params["delta"], params["restart"], params["horizon"])
    following = Renewal(Exponential(params["mtbf"])).begin(mulberry32(params["seed"]))
    told = walk(costs, lambda now_s: following(now_s).at_s)
    assert_same(told.stretches, day["segments"])
    assert all(one.end_s == two.start_s for one, two in pairwise(told.stretches))


@pytest.mark.parametrize("place", range(0, 90, 9))
def test_the_same_run_told_as_events_has_the_same_times(place):
    row = [row for row in read(VECTORS).rows if row.costs.interval_s >= 840][place * 60 // 90]
    job = SimulatedJob(row.costs, Renewal(Exponential(row.mtbf_s)), Options(), row.seed)
    told = timeline(job.entries())
    whole = split(told)
    seconds = {kind: ns / 1e9 for kind, ns in whole.coarse_ns().items()}
    assert seconds == pytest.approx(row.told["total_s"], rel=1e-12, abs=1e-6)
    assert whole.goodput == pytest.approx(row.told["goodput"], rel=1e-12)
    assert whole.wall_ns == round(row.told["end_s"] * 1e9)
    assert sum(told.account.recovery.failures.values()) == row.told["failures"]
    assert told.account.checkpoints.deleted == 0
    assert whole.state_ns[Phase.WARMUP] == whole.state_ns[Phase.INTERRUPTED] == 0


def test_the_events_of_a_day_make_the_segments_of_the_loop():
    day = FILE["one_day_seed1_tau16min"]
    job = SimulatedJob(Costs(960, 33, 600, 86_400), Renewal(Exponential(11_160)), Options(), 1)
    coarse = {Phase.WORK: "work", Phase.SAVE_STALL: "checkpoint", Phase.RESTART: "restart"}
    seen: list[tuple[str, float, float]] = []
    for segment in timeline(job.entries()).segments:
        lost = segment.lost or segment.cut_short
        kind = "lost" if lost else coarse[segment.phase]
        start_s = segment.start_ns / 1e9
        if seen and seen[-1][0] == kind == "lost":
            kind, start_s, _ = seen.pop()
        seen.append((kind, start_s, segment.end_ns / 1e9))
    assert_same(seen, day["segments"])


def assert_same(ours: list[Any], told: list[Any]) -> None:
    assert [kind for kind, *_ in ours] == [kind for kind, *_ in told]
    assert [one[1:] for one in ours] == [pytest.approx(tuple(at), abs=1e-9) for _, *at in told]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "it has no 'results'"),
        ("[]", "'list' object has no attribute 'get'"),
        ('{"params": {}, "results": [{}]}', "it has no 'tau_s'"),
        ('{"results": []}', "its results are empty"),
        ("not JSON", "Expecting value: line 1 column 1 (char 0)"),
        (
            """{"params": {"mtbf": 1, "delta": -3, "restart": 0, "horizon": 9},
            "results": [{"tau_s": 1, "seed": 1, "failures": 0}]}""",
            "save_s = -3 is below 0: give a larger one",
        ),
    ],
)
def test_a_file_that_holds_no_vectors_is_refused(tmp_path, content, message):
    path = tmp_path / "vectors.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="holds no vectors") as caught:
        read(path)
    assert str(caught.value) == f"{path} holds no vectors of the simulator: {message}"
