"""`make bench` leaves no claim out."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_make_bench_runs_every_file_that_is_a_benchmark_and_says_how_long_each_takes():
    (listed,) = re.findall(r"^BENCHES := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    names = {name for name, minutes in (one.split(":") for one in listed.split()) if int(minutes)}
    claims = {
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if '"benchmark": "' in path.read_text()
    }
    assert names == claims
