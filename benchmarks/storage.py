"""A durable save and a verified restore, beside a raw write and read of the same bytes, and beside DCP.

Run `python -m benchmarks.storage`. Two ranks hold the same 600 MB. In turn, in ABBA order, they save by
the harness with its saver process, write half of the bytes each with fsync, and save by torch's
distributed checkpoint through `FsspecWriter`. A save of ours takes from the step boundary until both
ranks know that it is committed; each is read back and verified before the next. A restore takes from the
search for a state until both ranks hold it, verified; a raw read, until each has read half of the bytes
into fresh memory. Files are in the page cache, as after a crash, and for `cold` put out of it.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

from benchmarks.machine import machine
from benchmarks.together import Silent, group, opened, run_ranks, saver
from harness.checkpoint.audit import verify
from harness.checkpoint.load import Found
from harness.checkpoint.restore import choose
from harness.checkpoint.save import Checkpointer

TENSORS, COLUMNS = 60, 1000
DEADLINE_S = 300.0
NEEDED = {"save / raw": 0.8, "save / dcp": 2.0, "restore / raw": 0.7}
"""Throughput of ours to the other's, at least."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=600, help="size of the state")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4, help="each has every side twice")
    parser.add_argument("--folder", type=Path, help="where to write; default: the system's own")
    parser.add_argument("--as-rank", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.as_rank is not None:
        _lead_rank(json.loads(asked.as_rank))
        return 0
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        with saver(folder) as (address, _):
            told = {"mb": asked.mb, "rounds": asked.rounds, "folder": name, "address": address}
            run_ranks("benchmarks.storage", asked.ranks, told)
        seconds = json.loads((folder / "seconds.json").read_text())
    return _show(asked, seconds)


# ── what a rank does ────────────────────────────────────────────────────────────────────────────


class Bench:
    """One rank, and everything that is measured."""

    def __init__(self, told: Mapping[str, Any], messages: dist.Store) -> None:
        self.folder = Path(told["folder"])
        self.rank, self.world_size = told["rank"], told["ranks"]
        self.store = opened(told)
        self.messages = messages
        rows = told["mb"] * 1_000_000 // (4 * TENSORS * COLUMNS)
        generator = torch.Generator().manual_seed(0)
        self.state = {
            f"layer.{number}": torch.rand(rows, COLUMNS, generator=generator)
            for number in range(TENSORS)
        }
        self.step = 0
        self.attempt = 0
        self.found: Found | None = None
        self.restore()
        self.saver = Checkpointer(
            self.store,
            self.messages,
            self.rank,
            self.world_size,
            self.attempt,
            Silent(),
            every_steps=1,
            keep=10**6,
            saver=told["address"],
        )

    def save(self) -> None:
        """Durably, by the harness."""
        assert self.saver.at_step(self.step, lambda: self.state, dict, force=True)
        assert self.saver.finish(DEADLINE_S)

    def raw_save(self) -> None:
        """Half of the bytes, in one file, with fsync."""
        path = self._raw()
        path.parent.mkdir(exist_ok=True)
        with path.open("wb", buffering=0) as file:
            for tensor in self._mine():
                file.write(tensor.flatten().numpy().data)
            os.fsync(file.fileno())
        _sync(path.parent)

    def dcp_save(self) -> None:
        """By torch, with the writer's own defaults."""
        writer = FsspecWriter(str(self.folder / f"dcp-{self.step}"))
        dcp.save(dict(self.state), storage_writer=writer)

    def restore(self) -> None:
        """The newest state, verified, on this rank."""
        number = torch.tensor([self.store.claim_attempt() if self.rank == 0 else 0])
        dist.broadcast(number, 0)
        self.attempt = int(number)
        place = (self.rank, self.world_size, self.attempt)
        found = choose(self.store, self.messages, *place, "auto", Silent(), DEADLINE_S)
        assert (found is None) == (self.step == 0)
        self.found = found

    def raw_read(self) -> None:
        """Half of the bytes, into fresh memory."""
        path = self._raw()
        memory = torch.empty(path.stat().st_size, dtype=torch.uint8)
        with path.open("rb", buffering=0) as file:
            view, position = memory.numpy().data, 0
            while position < len(view):
                position += file.readinto(view[position:])

    def check(self) -> None:
        """Verify the newest save, and make room."""
        if self.rank == 0:
            place = max(self.store.places())
            assert place.step == self.step
            verify(self.store, place)
            for older in self.store.places()[:-1]:
                self.store.remove(older)
            for name in ("raw", "dcp"):
                shutil.rmtree(self.folder / f"{name}-{self.step - 1}", ignore_errors=True)

    def forget(self) -> None:
        """Put the files out of the page cache."""
        self.found = None
        newest = self.store.path(max(self.store.places()).name)
        for path in (*Path(newest).iterdir(), self._raw()):
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def _raw(self) -> Path:
        return self.folder / f"raw-{self.step}" / str(self.rank)

    def _mine(self) -> Sequence[torch.Tensor]:
        return list(self.state.values())[self.rank :: self.world_size]


def _lead_rank(told: Mapping[str, Any]) -> None:
    with group(told) as messages:
        bench = Bench(told, messages)
        seconds = _measured(bench, told["rounds"])
        if bench.rank == 0:
            (bench.folder / "seconds.json").write_text(json.dumps(seconds))


def _measured(bench: Bench, rounds: int) -> dict[str, list[float]]:
    """Seconds of everything, by what was done."""
    saves = {"save": bench.save, "raw save": bench.raw_save, "dcp save": bench.dcp_save}
    reads = {"restore": bench.restore, "raw read": bench.raw_read}
    seconds: dict[str, list[float]] = {}
    for number in range(2 * rounds + 1):
        bench.step += 1
        taken = _in_turn(saves, number)
        bench.check()
        if number:  # the first is for memory and caches to be there
            _add(seconds, taken)
    bench.saver.close()
    cold = {f"cold {name}": read for name, read in reads.items()}
    for number in range(2 * rounds):
        _add(seconds, _in_turn(reads, number))
    for number in range(2 * rounds):
        _add(seconds, _in_turn(cold, number, bench.forget))
    return seconds


def _in_turn(
    acts: Mapping[str, Callable[[], None]],
    number: int,
    before: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Seconds of each, in this order or the other."""
    taken: dict[str, float] = {}
    for name in list(acts)[:: 1 if number % 2 == 0 else -1]:
        before()
        dist.barrier()
        started = time.perf_counter()
        acts[name]()
        dist.barrier()
        taken[name] = time.perf_counter() - started
    return taken


def _add(seconds: dict[str, list[float]], taken: Mapping[str, float]) -> None:
    for name, value in taken.items():
        seconds.setdefault(name, []).append(value)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


# ── what is printed ─────────────────────────────────────────────────────────────────────────────


def _show(asked: argparse.Namespace, seconds: Mapping[str, list[float]]) -> int:
    mb_s = {name: asked.mb / statistics.median(taken) for name, taken in seconds.items()}
    print(f"{asked.mb} MB, {asked.ranks} ranks, median of {2 * asked.rounds}: MB/s")
    for name, value in mb_s.items():
        low, high = asked.mb / max(seconds[name]), asked.mb / min(seconds[name])
        print(f"  {name:<14} {value:7,.0f}   {low:,.0f} to {high:,.0f}")
    ratios = {
        "save / raw": _ratio(seconds, "raw save", "save"),
        "save / dcp": _ratio(seconds, "dcp save", "save"),
        "raw / dcp": _ratio(seconds, "dcp save", "raw save"),
        "restore / raw": _ratio(seconds, "raw read", "restore"),
        "cold restore / raw": _ratio(seconds, "cold raw read", "cold restore"),
    }
    ours = [name for name in mb_s if name.endswith(("save", "restore")) and name.count(" ") == 0]
    print(
        json.dumps(
            {
                "benchmark": "storage",
                "ours": {name: round(mb_s[name]) for name in ours},
                "other": {name: round(mb_s[name]) for name in mb_s if name not in ours},
                "unit": f"MB/s for {asked.mb} MB on {asked.ranks} ranks",
                "ratio": {name: round(value, 2) for name, value in ratios.items()},
                "machine": machine(),
            }
        )
    )
    missed = [name for name, least in NEEDED.items() if ratios[name] < least]
    for name in missed:
        print(f"{name} is {ratios[name]:.2f}, and should be {NEEDED[name]}", file=sys.stderr)
    if "save / dcp" in missed:
        print(f"a raw write with fsync is {ratios['raw / dcp']:.2f} × DCP here", file=sys.stderr)
    return 1 if missed else 0


def _ratio(seconds: Mapping[str, list[float]], other: str, ours: str) -> float:
    """Median over the rounds of the other's time to ours: drift of the machine cancels out."""
    return statistics.median(
        theirs / mine for theirs, mine in zip(seconds[other], seconds[ours], strict=True)
    )


if __name__ == "__main__":
    sys.exit(main())
