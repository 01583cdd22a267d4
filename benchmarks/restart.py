"""From a killed rank to the next finished step: `harness run` beside plain `torchrun`, by turns.

Run `python -m benchmarks.restart`, about twelve minutes. Each of two tools at two sizes takes five turns,
a run of its own each time and a fifth of its kills, so that whatever else a shared machine does meets all of
them. A run trains `examples/train_gpt.py --preset tiny` while an injector kills ranks, and ends once the
last kill is recovered from; both sides load a checkpoint. Torchrun has a private store for each attempt,
without which it often fails or hangs; script, library and injector are the same. A restart is what passes
from the kill to the first step that is finished after it, less a median step of that run.

First time: the attempt after a kill finished a step, so no restart was burnt.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import torch

from benchmarks.machine import machine
from benchmarks.recovered import median_step_s, recovered
from benchmarks.together import end
from faultinject import tape, tapefile, targets
from faultinject.tape import Choice, Plan, Uniform
from faultinject.targets import Victim
from harness import journal
from harness.events import Entry, TrainingResumed
from harness.recorder import boot_id
from harness.recovery import Stage
from harness.report import report
from harness.report.records import Comeback
from harness.rundir import RunDir

SCRIPT = ("examples/train_gpt.py", "--preset", "tiny", "--steps", "1000000")
TURNS = 5
KILL_S = 40.0
"""How long a kill may take on average until a run counts as hanging."""
STOP_S = 60.0
WIDTH = 48
WHERE = machine(f"torch {torch.__version__}", "gloo")


class Tool(StrEnum):
    """Who launches."""

    HARNESS = "harness run"
    TORCHRUN = "torchrun"


GAPS = {Tool.HARNESS: Uniform(2, 4), Tool.TORCHRUN: Uniform(8, 12)}
"""Seconds between kills: longer than a restart on an idle machine. A kill that is due earlier waits."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is measured, or one turn of it."""

    tool: Tool
    ranks: int
    kills: int

    def turn(self, number: int) -> "Job":
        """Its part of the kills in one of the turns, of which the first is 0."""
        before, after = (self.kills * turns // TURNS for turns in (number, number + 1))
        return replace(self, kills=after - before)


@dataclass(slots=True)
class Measured:
    """What became of its kills, over all its turns so far."""

    job: Job
    restarts_s: list[float] = field(default_factory=list)
    """From each kill to the first step that was finished in a later attempt, less a median step."""
    steps_s: list[float] = field(default_factory=list)
    """That median step, of each turn."""
    tiers: Counter[str] = field(default_factory=Counter)
    """Where the states came from."""
    comebacks: list[Comeback] = field(default_factory=list)
    """Each with its parts, from the last finished step to the next first one."""
    first_time: int = 0
    """Kills after which the very next attempt finished a step."""
    wall_s: float = 0.0

    def stages_ms(self) -> dict[str, float]:
        """Medians of the parts of a restart."""
        parts = {s: [c.stages_ns[s] for c in self.comebacks if s in c.stages_ns] for s in Stage}
        return _ms({stage: statistics.median(ns) for stage, ns in parts.items() if ns})

    def slowest_ms(self) -> dict[str, float]:
        """The parts of the restart that took longest."""
        slowest = max(self.comebacks, key=lambda one: one.duration_ns or 0, default=None)
        return _ms({} if slowest is None else slowest.stages_ns)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    at = ("AT_2", "AT_4")
    parser.add_argument("--kills", type=int, nargs=2, default=(50, 20), metavar=at)
    parser.add_argument("--torchrun-kills", type=int, nargs=2, default=(15, 8), metavar=at)
    asked = parser.parse_args()
    jobs = [
        Job(Tool.HARNESS, 2, asked.kills[0]),
        Job(Tool.TORCHRUN, 2, asked.torchrun_kills[0]),
        Job(Tool.TORCHRUN, 4, asked.torchrun_kills[1]),
        Job(Tool.HARNESS, 4, asked.kills[1]),
    ]
    print(WHERE)
    print(f"{' '.join(SCRIPT)}; seconds from kill to the next finished step, less a median step\n")
    results = [Measured(job) for job in jobs if job.kills]
    for number in range(TURNS):
        # Whoever was last begins, so that what drifts favours nobody.
        for one in results if number % 2 == 0 else reversed(results):
            _take(one, number)
    for one in results:
        _show(one)
    print(json.dumps(_figures(results)))
    ours = [result for result in results if result.job.tool is Tool.HARNESS]
    return 0 if all(result.first_time == result.job.kills for result in ours) else 1


def _take(one: Measured, number: int) -> None:
    """A turn: a run of its own, unless there are fewer kills than turns."""
    job = one.job.turn(number)
    if not job.kills:
        return
    with tempfile.TemporaryDirectory() as folder:
        run_dir = RunDir.at(Path(folder) / "run")
        plan = Plan(GAPS[job.tool], (Choice("kill"),), job.kills, seed=TURNS * job.ranks + number)
        tapefile.write(Path(folder) / "tape.jsonl", tape.compile(plan, job.ranks))
        began = time.monotonic()
        with (Path(folder) / "output").open("wb") as output, _launched(job, run_dir, output):
            _until_recovered(job, run_dir)
        back = _count(one, run_dir, time.monotonic() - began)
        told = f"turn {number + 1} of {TURNS}, {job.tool}, {job.ranks} ranks"
        print(f"{told}: {back} of {job.kills} kills recovered from", flush=True)
        if back < job.kills:
            said = (Path(folder) / "output").read_text(errors="replace").splitlines()[-10:]
            print("it said last:", *said, sep="\n  ")


@contextmanager
def _launched(job: Job, run_dir: RunDir, output: object) -> Iterator[None]:
    """The job and, beside torchrun, its injector; nothing of them is left afterwards."""
    root = Path(__file__).resolve().parent.parent
    environ = os.environ | {
        "OMP_NUM_THREADS": "1",
        "HARNESS_RUN_DIR": str(run_dir.path),
        "HARNESS_SAVE_EVERY_STEPS": "10",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    processes = [
        subprocess.Popen(command, cwd=root, env=environ, stdout=output, stderr=output)  # type: ignore[call-overload]  # a file, whatever its kind
        for command in _commands(job, run_dir)
    ]
    try:
        yield
    finally:
        end(*processes, within_s=STOP_S)
        _bury(job, run_dir)


def _commands(job: Job, run_dir: RunDir) -> list[list[str]]:
    python, tape_file = sys.executable, str(run_dir.path.parent / "tape.jsonl")
    flags = ["--nproc-per-node", str(job.ranks), "--max-restarts", str(10 * job.kills)]
    if job.tool is Tool.HARNESS:
        own = ["--run", str(run_dir.path), "--tape", tape_file, "--no-metrics"]
        return [[python, "-m", "harness", "run", *flags, *own, *SCRIPT]]
    theirs = ["--log-dir", str(run_dir.path.parent / "logs")]
    inject = ["faultinject", "inject", "--run", str(run_dir.path), "--tape", tape_file]
    return [
        [python, "-m", "torch.distributed.run", "--standalone", *flags, *theirs, *SCRIPT],
        [python, "-m", *inject],
    ]


def _bury(job: Job, run_dir: RunDir) -> None:
    """Kill ranks that outlived their launcher, as torchrun's may."""
    newest = max((entry.attempt for entry in journal.read(run_dir)), default=0)
    for rank in range(job.ranks):
        found = targets.find(run_dir, rank, newest, boot_id())
        if isinstance(found, Victim):
            with found:
                found.send(signal.SIGKILL)


def _until_recovered(job: Job, run_dir: RunDir) -> None:
    """Until the last kill is recovered from, or too long."""
    deadline = time.monotonic() + KILL_S * (job.kills + 2)
    tail = journal.Tail(run_dir)
    seen: list[Entry] = []
    while time.monotonic() < deadline:
        seen += tail.poll()
        if len(list(recovered(seen))) == job.kills:
            return
        time.sleep(0.5)


def _count(one: Measured, run_dir: RunDir, wall_s: float) -> int:
    """Add what became of a turn's kills; how many of them were recovered from."""
    entries = journal.read(run_dir)
    pairs = list(recovered(entries))
    step_s = median_step_s(entries)
    one.restarts_s += [(step.at_ns - kill.at_ns) / 1e9 - step_s for kill, step in pairs]
    one.steps_s.append(step_s)
    one.tiers.update(
        "nothing" if entry.event.tier is None else entry.event.tier.value
        for entry in entries
        if isinstance(entry.event, TrainingResumed) and entry.event.step
    )
    one.comebacks += report(run_dir).comebacks
    one.first_time += sum(step.attempt == kill.attempt + 1 for kill, step in pairs)
    one.wall_s += wall_s
    return len(pairs)


def _ms(stages_ns: Mapping[Stage, float]) -> dict[str, float]:
    return {stage.value: round(ns / 1e6, 1) for stage, ns in stages_ns.items()}


# ── what is printed ─────────────────────────────────────────────────────────────────────────────


def _show(one: Measured) -> None:
    job, restarts_s = one.job, sorted(one.restarts_s)
    print(f"\n{job.tool}, {job.ranks} ranks: {job.kills} kills in {one.wall_s:.0f} s,", end=" ")
    print(f"{len(restarts_s)} recovered from, {one.first_time} of them first time")
    if restarts_s:
        points = {
            "least": restarts_s[0],
            "median": statistics.median(restarts_s),
            "p90": restarts_s[-(-len(restarts_s) * 9 // 10) - 1],
            "most": restarts_s[-1],
        }
        print("  " + "   ".join(f"{name} {value:.2f} s" for name, value in points.items()))
        print(f"  0 {_picture(restarts_s)} {restarts_s[-1]:.1f} s")
        step_ms = statistics.median(one.steps_s) * 1e3
        print(f"  a step {step_ms:.0f} ms; states from:", dict(one.tiers))
        print("  parts from the last finished step on, ms:", _listed(one.stages_ms()))
        print("  those of the slowest, ms:", _listed(one.slowest_ms()))


def _listed(parts_ms: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {ms:g}" for name, ms in parts_ms.items())


def _picture(values: Sequence[float]) -> str:
    """How many of `values` lie in each column between 0 and the largest."""
    counts = [0] * WIDTH
    for value in values:
        counts[max(0, min(WIDTH - 1, int(value / max(values) * WIDTH)))] += 1
    return "".join("·" if not count else str(min(9, count)) for count in counts)


def _figures(results: Sequence[Measured]) -> dict[str, object]:
    """The line for programs: two ranks first, since the targets are for them; four beside."""
    at_2_ranks, at_4_ranks = (_compared(results, ranks) for ranks in (2, 4))
    ours = {r.job.ranks: r for r in results if r.job.tool is Tool.HARNESS}
    return {
        "benchmark": "restart",
        "unit": "s from kill to the next finished step, less a median step; medians at 2 ranks",
        "ours": at_2_ranks["ours"],
        "other": at_2_ranks["other"],
        "ratio": at_2_ranks["ratio"],
        "at_4_ranks": at_4_ranks,
        "first_time": {n: f"{r.first_time} of {r.job.kills}" for n, r in sorted(ours.items())},
        "most": {n: round(max(r.restarts_s), 3) for n, r in sorted(ours.items()) if r.restarts_s},
        "parts_ms": {n: r.stages_ms() for n, r in sorted(ours.items())},
        "machine": WHERE,
    }


def _compared(results: Sequence[Measured], ranks: int) -> dict[str, object]:
    those = [it for it in results if it.job.ranks == ranks and it.restarts_s]
    medians = {it.job.tool: statistics.median(it.restarts_s) for it in those}
    ours, theirs = medians.get(Tool.HARNESS), medians.get(Tool.TORCHRUN)
    ratio = None if ours is None or theirs is None else round(ours / theirs, 4)
    return {
        "ours": None if ours is None else round(ours, 3),
        "other": {Tool.TORCHRUN.value: None if theirs is None else round(theirs, 3)},
        "ratio": {f"ours / {Tool.TORCHRUN}": ratio},
    }


if __name__ == "__main__":
    sys.exit(main())
