"""How fast a sweep over intervals and seeds is: ours, our own plain loop, and the textbook loop in node.

Run `python -m benchmarks.simulate`. All three simulate the same runs and are held to equal counts. Node
is left out, with a line, where it is not installed; its start and its compiler's warm-up do not count.
"""

import json
import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.machine import machine
from harness.simulation.draws import mulberry32
from harness.simulation.failures import Renewal
from harness.simulation.laws import Exponential
from harness.simulation.loop import Costs, walk
from harness.simulation.sweep import Sweep, sweep

T = TypeVar("T")

SCRIPT = Path(__file__).with_name("textbook_loop.js")
DAY_S = 86_400.0
LARGE_S = 10.0
"""What a large sweep may take."""
WANTED = 25
"""How many times faster than node."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is simulated."""

    mtbf: float
    save: float
    restart: float
    horizon: float
    intervals: Sequence[float]
    seeds: Sequence[int]
    repeats: int = 5

    def sweep(self) -> Sweep:
        """Every run, by the sweep."""
        return sweep(
            Renewal(Exponential(self.mtbf)),
            self.intervals,
            save_s=self.save,
            restart_s=self.restart,
            horizon_s=self.horizon,
            seeds=self.seeds,
        )

    def loop(self) -> list[list[int]]:
        """Segments and failures of each run, by the plain loop."""
        told = []
        for interval_s in self.intervals:
            costs = Costs(interval_s, self.save, self.restart, self.horizon)
            for seed in self.seeds:
                following = Renewal(Exponential(self.mtbf)).begin(mulberry32(seed))
                run = walk(costs, lambda now_s, following=following: following(now_s).at_s)  # type: ignore[misc]  # bound for this run
                told.append([len(run.stretches), len(run.failures_s)])
        return told


TEXTBOOK = Task(
    mtbf=11_160,
    save=33,
    restart=600,
    horizon=54 * DAY_S,
    intervals=[60.0 * m for m in (2, 4, 8, 14, 16, 20, 32, 64, 128)],
    seeds=range(1, 21),
)


def large(gpus: int = 100_000, seeds: int = 1_000, intervals: int = 30, days: int = 365) -> Task:
    """A year of a job of which each GPU fails as often as Llama 3's did."""
    mtbf_s = 11_160 * 16_384 / gpus
    return Task(
        mtbf=mtbf_s,
        save=33,
        restart=600,
        horizon=days * DAY_S,
        intervals=[60 * 1.15**place for place in range(intervals)],
        seeds=range(seeds),
    )


def main() -> None:
    print("the textbook's figure: 9 intervals × 20 seeds × 54 days", flush=True)
    ours_s, told = timed(TEXTBOOK.sweep, 20)
    print(f"  sweep       {ours_s * 1e3:10.2f} ms")
    plain_s, walked = timed(TEXTBOOK.loop, 1)
    print(f"  plain loop  {plain_s * 1e3:10.2f} ms, {plain_s / ours_s:,.0f} × ours")
    assert counts(told) == walked, "the sweep and the plain loop do not agree"
    node_s = node(TEXTBOOK, walked)
    if node_s is None:
        print("  node is not installed: left out")
    else:
        met = "as wanted" if node_s / ours_s >= WANTED else "LESS THAN WANTED"
        print(
            f"  node        {node_s * 1e3:10.2f} ms, {node_s / ours_s:,.0f} × ours ({met}: {WANTED})"
        )
    year_s = growth()
    ratio = {"ours / plain loop": round(ours_s / plain_s, 6)}
    other = {"plain loop": round(plain_s * 1e3, 1)}
    if node_s is not None:
        ratio |= {"ours / node": round(ours_s / node_s, 6)}
        other |= {"node": round(node_s * 1e3, 1)}
    print(
        json.dumps(
            {
                "benchmark": "simulate",
                "ours": round(ours_s * 1e3, 2),
                "other": other,
                "unit": "ms for 9 intervals × 20 seeds × 54 days",
                "ratio": ratio,
                "large_s": round(year_s, 2),
                "peak_mb": round(peak_mb()),
                "machine": machine(),
            }
        )
    )


def growth() -> float:
    """How the cost grows with everything that can grow; gives the time of the largest."""
    print("a year of 100,000 GPUs (a failure in 30 minutes), by number of seeds and intervals:")
    for seeds, intervals in ((10, 30), (100, 30), (1_000, 3), (1_000, 10)):
        show(large(seeds=seeds, intervals=intervals))
    year_s = show(large())
    met = "as wanted" if year_s < LARGE_S else "MORE THAN WANTED"
    print(f"  ({met}: under {LARGE_S:.0f} s; at most {peak_mb():.0f} MB of memory)")
    print(
        "by number of GPUs, 100 seeds × 30 intervals: failures set the cost, not intervals of work"
    )
    for gpus in (1_000, 10_000, 100_000):
        show(large(gpus=gpus, seeds=100), f"{gpus:7,} GPUs")
    return year_s


def show(task: Task, name: str = "") -> float:
    took_s, told = timed(task.sweep, 1)
    what = name or f"{len(task.seeds):5,} seeds × {len(task.intervals):2} intervals"
    print(f"  {what}: {took_s:7.3f} s, {int(told.failures.sum()):13,} failures", flush=True)
    return took_s


def timed(work: Callable[[], T], repeats: int) -> tuple[float, T]:
    """Median seconds of `work`, and what it gave."""
    took: list[float] = []
    for _ in range(repeats):
        started = time.perf_counter()
        result = work()
        took.append(time.perf_counter() - started)
    return statistics.median(took), result


def node(task: Task, expected: list[list[int]]) -> float | None:
    """Median seconds of the same in node; None where there is none."""
    path = shutil.which("node")
    if path is None:
        return None
    asked = json.dumps({**asdict(task), "seeds": list(task.seeds)})
    done = subprocess.run(
        [path, str(SCRIPT)], input=asked, capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout)
    assert told["counts"] == expected, "node and the plain loop do not agree"
    return float(statistics.median(told["seconds"]))


def counts(told: Sweep) -> list[list[int]]:
    """Segments and failures of each run, as the loop has them."""
    return [
        [2 * int(committed) + 2 * int(failures), int(failures)]
        for committed, failures in zip(told.committed.flat, told.failures.flat, strict=True)
    ]


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
