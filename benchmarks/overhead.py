"""What the signals cost: the same loop with and without them, and without them twice.

Run `python -m benchmarks.overhead [--each]`, four minutes (`--minutes`). Two ranks train the demo's
model by all loops in turn, block by block, there and back again (A B A′ A′ B A), so that a machine
that gets slower hits all alike. A ratio is the median over such rounds, with a bootstrap interval of
95 %. The plain loop beside itself says what this machine can resolve: where that is not 1 to within
1 %, or an interval lies across the target, the answer is `unresolved`. Processor time of rank 0, which
has most to do, is told beside it: others on the machine disturb it less, and it counts no waiting.
What is added is also timed with no training between, which any machine can resolve.

"all, dense saves" also copies the state for the memory tier once in each block. A run does so less often:
what a save adds is therefore spread over as many steps as the harness chooses for a save that stops
training so long, before any failure, and that is "all, saves". `--each` times each signal by itself, and
the recompute audit, which is a choice of its own. What is done every so many steps is done once in a
block here, more often than by default.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from benchmarks.alone import alone_us
from benchmarks.forked import forked
from benchmarks.loops import AGAIN, ALL, BLOCK, PLAIN, RANKS, ROWS, SAVED, Side
from benchmarks.machine import machine
from benchmarks.together import saver
from harness import exactness
from harness.events import Tier
from harness.intervals.asked import LEAST, MOST, Auto
from harness.intervals.choice import History, Measured, decide

CHOSEN = "all, saves"
TARGETS = {ALL: 1.01, CHOSEN: 1.02}
"""What a step with the signals may take of a plain one, and one with copies to memory as well."""
RESOLVED = 0.01
"""How far from 1 the plain loop beside itself may be."""
LEAST_ROUNDS = 8
"""Of fewer no interval can be made."""


# ── rounds ──────────────────────────────────────────────────────────────────────────────────────


Round = dict[str, tuple[float, float]]
"""Seconds of a step, and of a processor for it, by loop."""
Measurement = tuple[list[Round], float]
"""All rounds, and the seconds for which a save stops training."""


def work(
    told: Mapping[str, Any], names: Sequence[str], minutes: float, kept: list[object]
) -> Measurement:
    """Take turns until the time is over."""
    rank, folder = told["rank"], Path(told["folder"])
    exactness.pin(1, "cpu", exact=False)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(folder / "store"), RANKS),
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=300),
    )
    sides = {n: Side(ROWS[n], folder / n.replace(" ", "-"), rank, told) for n in names}
    kept.append(sides)
    for side in sides.values():
        side.block()  # warms up
    rounds: list[Round] = []
    until = time.monotonic() + 60 * minutes
    ended = torch.zeros(1)
    while not ended.item():
        there = {name: sides[name].block() for name in names}
        back = {name: sides[name].block() for name in reversed(names)}
        rounds.append({name: mean(there[name], back[name]) for name in names})
        ended.fill_(time.monotonic() > until)
        dist.broadcast(ended, 0)
        if rank == 0 and len(rounds) % 10 == 0:
            print(f"  {len(rounds)} rounds", file=sys.stderr, flush=True)
    for side in sides.values():
        side.close()
    dist.destroy_process_group()
    return rounds, statistics.median(sides[SAVED].blocked_s)


def chosen_steps(rounds: Sequence[Round], blocked_s: float) -> int:
    """The interval of saves that a run without a failure yet would choose."""
    step_s = statistics.median(one[PLAIN][0] for one in rounds)
    measured = Measured(step_s, {Tier.MEMORY: blocked_s}, History())
    asked = Auto(LEAST, MOST[Tier.MEMORY])
    return decide(Tier.MEMORY, None, asked, measured, alone=True).steps


def at_interval(one: Round, steps: int) -> tuple[float, float]:
    """A step of a loop that saves once in so many."""
    (all_s, all_cpu_s), (saved_s, saved_cpu_s) = one[ALL], one[SAVED]
    part = BLOCK / steps
    return all_s + part * (saved_s - all_s), all_cpu_s + part * (saved_cpu_s - all_cpu_s)


def mean(there: tuple[float, float], back: tuple[float, float]) -> tuple[float, float]:
    """Of a step, from two blocks."""
    return (there[0] + back[0]) / (2 * BLOCK), (there[1] + back[1]) / (2 * BLOCK)


# ── what they say ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of a loop to the plain one."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> "Ratio":
        """The median, and where 95 % of the medians of resampled rounds lie."""
        chance = random.Random(0)
        medians = sorted(
            statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(2_000)
        )
        return cls(statistics.median(ratios), medians[50], medians[-51])

    @property
    def is_one(self) -> bool:
        """As near to 1 as a claim of one per cent needs."""
        return self.low <= 1 <= self.high and max(self.high - 1, 1 - self.low) <= RESOLVED

    def __str__(self) -> str:
        return f"{self.middle:.4f}   {self.low:.4f} to {self.high:.4f}"


def verdicts(of: Mapping[str, Ratio], rounds: int) -> dict[str, str]:
    """Whether each target is met, if this machine can tell."""
    can_tell = rounds >= LEAST_ROUNDS and of[AGAIN].is_one
    return {
        name: verdict(of[name], most) if can_tell else "unresolved"
        for name, most in TARGETS.items()
    }


def verdict(ratio: Ratio, most: float) -> str:
    """Whether all that the ratio may be lies on one side of `most`."""
    if ratio.high <= most:
        return "met"
    return "missed" if ratio.low > most else "unresolved"


def ratios(rounds: Sequence[Round], which: int) -> dict[str, Ratio]:
    """Each loop beside the plain one."""
    return {
        name: Ratio.of([one[name][which] / one[PLAIN][which] for one in rounds])
        for name in rounds[0]
        if name != PLAIN
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", action="store_true", help="time each signal alone too")
    parser.add_argument("--minutes", type=float, default=4, help="how long to time (default: 4)")
    options = parser.parse_args()
    names = list(ROWS) if options.each else [PLAIN, ALL, SAVED, AGAIN]
    where = machine(f"torch {torch.__version__}", "gloo")
    print(f"{where}; {RANKS} ranks, blocks of {BLOCK} steps")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with saver(place) as (address, _):
            told = {"folder": folder, "address": address, "ranks": RANKS}
            rounds, blocked_s = forked(
                RANKS,
                place,
                lambda rank, kept: work({**told, "rank": rank}, names, options.minutes, kept),
            )
        alone = alone_us(place / "alone")
    every = chosen_steps(rounds, blocked_s)
    rounds = [{**one, CHOSEN: at_interval(one, every)} for one in rounds]
    wall, cpu = ratios(rounds, 0), ratios(rounds, 1)
    print(f"\n{len(rounds)} rounds; a step over one of the plain loop, and where 95 % lies")
    print(f"{'':>16}   {'time':27}   processor time")
    for name, ratio in wall.items():
        print(f"{name:>16}   {ratio}   {cpu[name]}")
    answers, by_cpu = verdicts(wall, len(rounds)), verdicts(cpu, len(rounds))
    for name, most in TARGETS.items():
        print(f"target {most} of {name!r}: {answers[name]}; by processor time: {by_cpu[name]}")
    print(f"a save stops training for {1e3 * blocked_s:.1f} ms; chosen: one in {every} steps")
    least_us = 1e6 * min(one[PLAIN][0] for one in rounds)
    alone["saves"] = 1e6 * blocked_s / every
    print("alone, without training, in µs of a step:", end=" ")
    print(", ".join(f"{name} {us:.0f}" for name, us in alone.items()))
    share = sum(alone.values()) / least_us
    print(f"together {share:.2%} of the fastest plain step, {least_us / 1e3:.1f} ms")
    told = {"memory_every_steps": every, "alone_us": alone, "alone_share": round(share, 5)}
    print(json.dumps({**document(rounds, wall, cpu, where), **told}))
    return 1 if "missed" in answers.values() else 0


def document(
    rounds: Sequence[Round], wall: Mapping[str, Ratio], cpu: Mapping[str, Ratio], where: str
) -> dict[str, Any]:
    """What the last line says of the rounds."""

    def told(of: Mapping[str, Ratio]) -> dict[str, list[float]]:
        return {n: [round(it, 4) for it in (r.middle, r.low, r.high)] for n, r in of.items()}

    return {
        "benchmark": "overhead",
        "unit": "s a step",
        "ours": {n: round(statistics.median(one[n][0] for one in rounds), 5) for n in TARGETS},
        "other": {PLAIN: round(statistics.median(one[PLAIN][0] for one in rounds), 5)},
        "ratio": {f"{name} / {PLAIN}": round(wall[name].middle, 4) for name in TARGETS},
        "targets": TARGETS,
        "answers": verdicts(wall, len(rounds)),
        "answers_of_processor_time": verdicts(cpu, len(rounds)),
        "each": told(wall),
        "each_of_processor_time": told(cpu),
        "rounds": len(rounds),
        "machine": where,
    }


if __name__ == "__main__":
    sys.exit(main())
