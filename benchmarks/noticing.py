"""How soon a rank that hangs is noticed, by the kind of its hang; and whether anything else is.

Run `python -m benchmarks.noticing`. In the first run each attempt hangs in another way, and is timed
from the hang to `FailureDetected` in the log and on to the next finished step. In the second nothing
hangs, and any alarm is a false one: its first step takes 30 times as long as another, evaluations and
saves 10 times, and for a minute a core is taken away (`--seconds 600` for ten minutes of it).

Beside it: how long torch itself has the other ranks wait in a collective before it gives up.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.distributed.constants import default_pg_timeout

from benchmarks.hanging import EARLY, KINDS
from benchmarks.machine import machine
from benchmarks.together import end
from harness import journal, slots
from harness.events import (
    Entry,
    EvaluationFinished,
    FailureDetected,
    SaveUnblocked,
    StepFinished,
)
from harness.rundir import RunDir

EARLY_LIMIT_S = 5
TORCH = "torch's time-out"
TORCH_S = default_pg_timeout.total_seconds()
"""Of a gloo group that was asked for none."""
ROOT = Path(__file__).resolve().parent.parent
JOB = ROOT / "benchmarks" / "hanging.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=3, help="hangs of each kind (default: 3)")
    parser.add_argument(
        "--seconds", type=float, default=120, help="length of the run without a hang (default: 120)"
    )
    asked = parser.parse_args()
    print(f"{_machine()}; 2 ranks\n")
    cost_us = {ranks: _look_us(ranks) for ranks in (8, 64)}
    print(
        "four looks a second at",
        *(f"{n} ranks: {us * 4e-4:.2f} % of a core;" for n, us in cost_us.items()),
    )
    found = _noticed(asked.times)
    alarms, lasted_s = _without_a_hang(asked.seconds) if asked.seconds else (0, 0.0)
    medians_s = {kind: statistics.median(it) for kind, it in found.items() if it}
    print(
        json.dumps(
            {
                "benchmark": "noticing",
                "unit": "s from hang to alarm",
                "ours": {kind: round(median_s, 2) for kind, median_s in medians_s.items()},
                "other": {TORCH: TORCH_S},
                "ratio": {
                    f"{kind} / {TORCH}": round(median_s / TORCH_S, 5)
                    for kind, median_s in medians_s.items()
                },
                "most": {kind: round(max(it), 2) for kind, it in found.items() if it},
                "times": asked.times,
                "false_alarms": alarms,
                "without_a_hang_s": round(lasted_s),
                "machine": _machine(),
            }
        )
    )
    return 0 if alarms == 0 and all(len(found[kind]) == asked.times for kind in KINDS) else 1


def _machine() -> str:
    return machine(f"torch {torch.__version__}", "gloo")


def _look_us(ranks: int) -> float:
    """What one look at all slots, and the decision, costs."""
    from launch.lookout import Lookout
    from launch.watchdog import LOOK_S, Limits

    with tempfile.TemporaryDirectory() as folder:
        run_dir = RunDir.at(folder)
        run_dir.create()
        writers = [slots.SlotWriter(run_dir.slot(rank), 1) for rank in range(ranks)]
        lookout = Lookout(Limits(), print)
        lookout.attempt_begins(1, ranks)
        spent_s, looks = 0.0, 8
        for step in range(looks):
            for writer in writers:
                writer.update(step=step, own_ns=1)
            time.sleep(LOOK_S)
            began = time.thread_time()
            lookout.look(run_dir, range(ranks))
            spent_s += time.thread_time() - began
        for writer in writers:
            writer.close()
    return spent_s / looks * 1e6


# ── with hangs ──────────────────────────────────────────────────────────────────────────────────


def _noticed(times: int) -> dict[str, list[float]]:
    """Seconds from each hang to its alarm, by kind."""
    alarms_s: dict[str, list[float]] = defaultdict(list)
    back_s: dict[str, list[float]] = defaultdict(list)
    attempts = len(KINDS) * times
    limits = ["--startup-limit", str(EARLY_LIMIT_S), "--restore-limit", str(EARLY_LIMIT_S)]
    flags = [*limits, "--max-restarts", str(attempts), "--save-every-steps", "5"]
    with _run(flags, {"HANGS": str(attempts)}) as (run_dir, process):
        process.wait(60 + 30 * attempts)
        entries = list(journal.read(run_dir))
        for attempt, (kind, at_ns) in _hangs(run_dir, attempts).items():
            alarm = _first(entries, FailureDetected, attempt)
            step = _first(entries, StepFinished, attempt + 1)
            if alarm is None or not isinstance(alarm.event, FailureDetected):
                continue
            if alarm.event.cause.value != "hang" or alarm.event.rank != 1:
                print(f"  attempt {attempt}, {kind}: {alarm.event}")
                continue
            alarms_s[kind].append((alarm.at_ns - at_ns) / 1e9)
            if step is not None:
                back_s[kind].append((step.at_ns - alarm.at_ns) / 1e9)
    print(f"\n{times} hangs of each kind: seconds from the hang to the alarm (median, most),")
    print("and from the alarm to the next finished step (median)")
    for kind in KINDS:
        limit = EARLY_LIMIT_S if kind in (*EARLY, "set-up") else 3
        if alarms_s[kind]:
            back = f"{statistics.median(back_s[kind]):5.2f}" if back_s[kind] else "    –"
            print(
                f"  {kind:16} limit {limit} s   {statistics.median(alarms_s[kind]):5.2f}"
                f"   {max(alarms_s[kind]):5.2f}   back {back}"
            )
    return alarms_s


def _hangs(run_dir: RunDir, attempts: int) -> dict[int, tuple[str, int]]:
    """Kind and instant of the hang of each attempt, as its rank told before."""
    told: dict[int, tuple[str, int]] = {}
    for attempt in range(1, attempts + 1):
        path = run_dir.log(attempt, 1, "out")
        found = re.search(r"hang (.+) at (\d+)", path.read_text() if path.exists() else "")
        if found:
            told[attempt] = (found[1], int(found[2]))
    return told


def _first(entries: Sequence[Entry], kind: type, attempt: int) -> Entry | None:
    return next(
        (it for it in entries if it.attempt == attempt and isinstance(it.event, kind)), None
    )


# ── without ─────────────────────────────────────────────────────────────────────────────────────


def _without_a_hang(seconds: float) -> tuple[int, float]:
    """Alarms, of which each is a false one, and how long that was watched."""
    began = time.monotonic()
    with _run(["--save-every-steps", "20"], {"SECONDS": str(seconds)}) as (run_dir, process):
        time.sleep(seconds / 3)
        hog_s = min(60.0, seconds / 3)
        with _hogs():
            time.sleep(hog_s)
        process.wait(10 * seconds + 120)
        entries = list(journal.read(run_dir))
    lasted_s = time.monotonic() - began
    alarms = sum(isinstance(it.event, FailureDetected) for it in entries)
    count = {
        kind: sum(isinstance(it.event, kind) for it in entries)
        for kind in (StepFinished, EvaluationFinished, SaveUnblocked)
    }
    print(f"\n{lasted_s:.0f} s without a hang, a core taken away for {hog_s:.0f} s of them:")
    print(
        f"  {count[StepFinished]} steps, {count[EvaluationFinished]} evaluations and"
        f" {count[SaveUnblocked]} saves of 10 times a step, a first step of 30: {alarms} alarms"
    )
    for it in entries:
        if isinstance(it.event, FailureDetected):
            print(f"  {it.event}")
    return alarms + (count[StepFinished] == 0), lasted_s


@contextmanager
def _hogs() -> Iterator[None]:
    """Take one core away, by processes that do nothing else and stay on it."""
    core = min(os.sched_getaffinity(0))
    code = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    hogs = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


# ── both ────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _run(
    flags: Sequence[str], environment: Mapping[str, str]
) -> Iterator[tuple[RunDir, "subprocess.Popen[bytes]"]]:
    """A run of the job, ended in any case."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = RunDir.at(Path(folder) / "run")
        common = ["--run", str(run_dir.path), "--nproc-per-node", "2", "--no-metrics", "--quiet"]
        process = subprocess.Popen(
            [sys.executable, "-m", "harness", "run", *common, *flags, str(JOB)],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | dict(environment),
        )
        try:
            yield run_dir, process
        finally:
            end(process, within_s=30)


if __name__ == "__main__":
    sys.exit(main())
