"""Goodput under one and the same tape of kills: `harness run`, and what people would write instead.

Run `python -m benchmarks.goodput`: 20 kills, a minute apart in the mean, so 21 minutes a side and over
an hour in all. One side would take another's cores, so they work by turns, five kills each, and whatever
else a shared machine does meets all of them. `--kills 5 --mtbf 20` is a quick look. The job is
`benchmarks/kept.py`. All sides are told how often it fails: ours by how often to copy to memory
(with `--memory-every auto` it learns that anew in each turn), the others save at Young's interval for
what a save costs them and the tape's own MTBF, under torchrun with a private store for each attempt,
without which it often fails or hangs. A kill that falls due while the job is not back waits.

A step takes about a tenth of a second on two cores; with `--batch 192` it takes a third of that, and what
comes between two steps weighs more. glibc is told to keep what a step frees, on all sides: whether it
gives that back and faults it in again in the next step follows from where a process has its memory, so
from chance, and takes a twentieth of a step or more.

Goodput is that of `benchmarks/spent.py`, from the step logs that all sides write.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import torch

from benchmarks.machine import machine
from benchmarks.spent import Split, Step, split
from benchmarks.together import end
from faultinject import tape
from faultinject.tape import Choice, Exponential, Plan
from harness.beginning import start_ticks

ROOT = Path(__file__).resolve().parent.parent
SIDES = {
    "ours": "harness run, memory tier",
    "torch-save": "DDP + torch.save on rank 0 at Young's interval, torchrun",
    "async-save": "DDP + DCP async_save at Young's interval, torchrun",
}
PRELOADED = "torch.distributed.checkpoint.state_dict,fsspec"
"""What the script imports, which ranks then need not at every restart."""
KEEP_FREED = "glibc.malloc.trim_threshold=1073741824:glibc.malloc.mmap_threshold=1073741824"
KILLS_A_TURN = 5
RANKS = 2
START_S = 240.0
BACK_S = 120.0
"""How long a job may take to come back until it counts as lost."""
STOP_S = 60.0
LOOK_S = 0.02


@dataclass(slots=True)
class Measured:
    """What became of a side, over all its turns so far."""

    side: str
    where: Split = field(default_factory=Split)
    steps_s: list[float] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)
    """From each kill to the next finished step."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A part of the tape, by its own clock."""

    at_s: Sequence[float]
    ranks: Sequence[int]
    ends_s: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="(default: 20)")
    parser.add_argument("--mtbf", type=float, default=60.0, metavar="S", help="(default: 60)")
    parser.add_argument("--seed", type=int, default=1, help="of the tape (default: 1)")
    parser.add_argument("--preset", default="tiny", help="of the model (default: tiny)")
    parser.add_argument("--batch", type=int, default=512, help="windows a step (default: 512)")
    every = "ours between copies to memory (default: 0.5s; auto has yet to learn the MTBF)"
    parser.add_argument("--memory-every", default="0.5s", metavar="EVERY", help=every)
    parser.add_argument("--sides", default=",".join(SIDES), help=f"(default: {','.join(SIDES)})")
    asked = parser.parse_args()
    plan = Plan(Exponential(asked.mtbf), (Choice("kill"),), asked.kills, seed=asked.seed)
    faults = tape.compile(plan, RANKS).faults
    whole_s = faults[-1].at_s + asked.mtbf
    print(f"{_machine()}; {RANKS} ranks, preset {asked.preset}, batch {asked.batch}")
    print(
        f"{len(faults)} kills in {whole_s:.0f} s a side, MTBF {asked.mtbf:g} s, start-up excluded\n"
    )
    results = [Measured(side) for side in asked.sides.split(",")]
    turns = _turns(faults, whole_s)
    for number, turn in enumerate(turns):
        # Whoever was last begins, so that what drifts favours nobody.
        for one in results if number % 2 == 0 else reversed(results):
            _take(one, turn, asked)
            print(
                f"turn {number + 1} of {len(turns)}, {one.side}: {one.where.goodput:.4f} so far",
                flush=True,
            )
    print("", *map(_shown, results), sep="\n")
    print(json.dumps(_figures(results, asked)))
    return 0 if all(len(one.back_s) == asked.kills for one in results) else 1


def _turns(faults: Sequence[tape.Fault], whole_s: float) -> list[Turn]:
    """The tape cut midway between two kills."""
    groups = [faults[at : at + KILLS_A_TURN] for at in range(0, len(faults), KILLS_A_TURN)]
    cuts = [(a[-1].at_s + b[0].at_s) / 2 for a, b in pairwise(groups)]
    bounds = pairwise([0.0, *cuts, whole_s])
    return [
        Turn(
            [it.at_s - began_s for it in group],
            [it.target.number for it in group],
            ended_s - began_s,
        )
        for group, (began_s, ended_s) in zip(groups, bounds, strict=True)
    ]


def _machine() -> str:
    return machine(f"torch {torch.__version__}", "gloo")


def _figures(results: Sequence[Measured], asked: argparse.Namespace) -> dict[str, object]:
    by_side = {one.side: one for one in results}
    ours = by_side.get("ours")
    others = {side: one for side, one in by_side.items() if side != "ours"}
    return {
        "benchmark": "goodput",
        "unit": "kept work over wall time, start-up excluded",
        "ours": None if ours is None else round(ours.where.goodput, 4),
        "other": {side: round(one.where.goodput, 4) for side, one in others.items()},
        "ratio": {}
        if ours is None
        else {
            f"ours / {s}": round(ours.where.goodput / one.where.goodput, 3)
            for s, one in others.items()
            if one.where.goodput
        },
        "kills": asked.kills,
        "mtbf_s": asked.mtbf,
        "batch": asked.batch,
        "seed": asked.seed,
        "memory_every": asked.memory_every,
        "steps": {side: one.where.kept for side, one in by_side.items()},
        "seconds": {side: _rounded(one.where) for side, one in by_side.items()},
        "step_s": {side: round(_median(one.steps_s), 4) for side, one in by_side.items()},
        "back_s": {side: round(_median(one.back_s), 3) for side, one in by_side.items()},
        "machine": _machine(),
    }


def _median(of_s: Sequence[float]) -> float:
    return statistics.median(of_s) if of_s else 0.0


def _rounded(where: Split) -> dict[str, float]:
    parts = asdict(where).items()
    return {part[:-2]: round(value, 1) for part, value in parts if part.endswith("_s")}


# ── one side ────────────────────────────────────────────────────────────────────────────────────


def _take(one: Measured, turn: Turn, asked: argparse.Namespace) -> None:
    """A side takes its turn: a job of its own, from its first finished step on."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _launched(one.side, folder, asked):
            try:
                began_s = _next_step(folder, 0.0, START_S).ended_s
                for rank, at_s in zip(turn.ranks, turn.at_s, strict=True):
                    one.back_s.append(_struck(folder, rank, began_s + at_s))
                time.sleep(max(0.0, began_s + turn.ends_s - time.monotonic()))
                ended_s = _next_step(folder, time.monotonic(), BACK_S).ended_s
            except (OSError, ValueError) as lost:  # it did not come back, or a rank went by itself
                print(f"{one.side}: {lost}; it said last:", *_last_lines(folder), sep="\n  ")
                one.where += Split(back_s=turn.ends_s)  # nothing of such a turn counts as kept
                return
        steps = _steps(folder)
    one.steps_s += [step.ended_s - step.began_s for step in steps]
    one.where += split(steps, began_s, ended_s)


def _shown(of: Measured) -> str:
    where, left = of.where, f"{'':10}  "
    return (
        f"{of.side:10}  goodput {where.goodput:.4f}   ({SIDES[of.side]})\n"
        f"{left}{where.kept} steps kept, of {_median(of.steps_s) * 1e3:.1f} ms in the median;"
        f" {len(of.back_s)} kills, back after {_median(of.back_s):.2f} s\n"
        f"{left}s: kept {where.kept_s:.1f}, lost {where.lost_s:.1f},"
        f" coming back {where.back_s:.1f}, between steps {where.between_s:.1f}\n"
    )


def _struck(folder: Path, rank: int, due_s: float) -> float:
    """Kill a rank when that is due and it is at work; gives how long the job took to be back."""
    time.sleep(max(0.0, due_s - time.monotonic()))
    before = {rank: (folder / f"rank-{rank}.json").read_text() for rank in range(RANKS)}
    member = json.loads(before[rank])
    pidfd = os.pidfd_open(member["pid"])
    try:
        if start_ticks(member["pid"]) != member["ticks"]:
            raise TimeoutError(f"rank {rank} is not the process that it was")
        killed_s = time.monotonic()
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)
    first = json.loads(before[0])["pid"]
    return _next_step(folder, killed_s, BACK_S, other_than=first).ended_s - killed_s


def _next_step(folder: Path, after_s: float, within_s: float, other_than: int = 0) -> Step:
    """The first step that is finished after an instant, and not by rank 0's process `other_than`."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        for one in _steps(folder, last=50):
            if one.ended_s > after_s and one.pid != other_than:
                return one
        time.sleep(LOOK_S)
    raise TimeoutError(f"no step was finished within {within_s:g} s")


def _steps(folder: Path, last: int | None = None) -> list[Step]:
    """Lines of the step log; a torn one is left out."""
    try:
        with (folder / "steps.jsonl").open("rb") as file:
            if last is not None:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - 150 * last))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        with suppress(ValueError, TypeError):
            found.append(Step(**json.loads(line)))
    return found


@contextmanager
def _launched(side: str, folder: Path, asked: argparse.Namespace) -> Iterator[None]:
    """The job; nothing of it is left afterwards."""
    environ = os.environ | {
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "GLIBC_TUNABLES": KEEP_FREED,
    }
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            _command(side, folder, asked), cwd=ROOT, env=environ, stdout=output, stderr=output
        )
        try:
            yield
        finally:
            end(process, within_s=STOP_S)
            _bury(folder)


def _command(side: str, folder: Path, asked: argparse.Namespace) -> list[str]:
    script = ["benchmarks/kept.py", "--side", side, "--folder", str(folder)]
    script += ["--preset", asked.preset, "--batch", str(asked.batch), "--mtbf", str(asked.mtbf)]
    flags = ["--nproc-per-node", str(RANKS), "--max-restarts", str(10 * asked.kills)]
    if side == "ours":
        own = ["--run", str(folder / "run"), "--no-metrics", "--memory-every", asked.memory_every]
        own += ["--preload", PRELOADED]
        return [sys.executable, "-m", "harness", "run", *flags, *own, *script]
    flags += ["--standalone", "--log-dir", str(folder / "logs")]
    return [sys.executable, "-m", "torch.distributed.run", *flags, *script]


def _bury(folder: Path) -> None:
    """Kill ranks that outlived their launcher, as torchrun's may."""
    for path in folder.glob("rank-*.json"):
        with suppress(OSError, ValueError):
            member = json.loads(path.read_text())
            pidfd = os.pidfd_open(member["pid"])
            with os.fdopen(pidfd):
                if start_ticks(member["pid"]) == member["ticks"]:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _last_lines(folder: Path) -> list[str]:
    return (folder / "output").read_text(errors="replace").splitlines()[-10:]


if __name__ == "__main__":
    sys.exit(main())
