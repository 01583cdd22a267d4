"""Whether saves leave anything behind in memory: 300 to each tier, read off after every one of them.

Run `python -m benchmarks.memory_growth`. Two ranks save a state of 64 MB to memory and to storage, and
compare after each save with what they held after the tenth: resident memory of the ranks and of the
saver, what lies in /dev/shm, and what lies in memory without a name (memfd) that any of them holds.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.machine import machine
from benchmarks.together import checkpointer, group, opened, run_ranks
from benchmarks.together import saver as saving

COLUMNS = 1000
WARM = 10
"""Saves after which nothing may grow."""
ALLOWED_BYTES = 4 << 20
"""What an interpreter's own heap moves by; a single copy of a rank's share is 32 MB."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=64, help="size of the state")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--saves", type=int, default=300, help="to each tier")
    parser.add_argument("--as-rank", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.as_rank is not None:
        _lead_rank(json.loads(asked.as_rank))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with saving(folder) as (address, pid):
            told = {**vars(asked), "folder": name, "address": address, "saver": pid}
            run_ranks("benchmarks.memory_growth", asked.ranks, told)
        series = json.loads((folder / "series.json").read_text())
    return _show(asked, series)


# ── what a rank does ────────────────────────────────────────────────────────────────────────────


def _lead_rank(told: Mapping[str, Any]) -> None:
    with group(told) as messages:
        state = {"weights": torch.rand(told["mb"] * 250_000 // COLUMNS, COLUMNS)}
        series: dict[str, list[int]] = {}
        pids = _pids(told["ranks"])
        step = 0
        for tier, every in (("memory", (0, 1)), ("storage", (1, 0))):
            ours = checkpointer(
                told, opened(told), messages, every_steps=every[0], memory_every=every[1]
            )
            for _ in range(told["saves"]):
                step += 1
                saved = ours.at_step(step, lambda: state, dict)
                if tier == "storage":
                    assert saved
                    assert ours.finish(60.0)
                state["weights"].add_(1.0)
                for name, size in _held(told["saver"], pids).items() if told["rank"] == 0 else ():
                    series.setdefault(f"{tier}: {name}", []).append(size)
            ours.close()
        if told["rank"] == 0:
            (Path(told["folder"]) / "series.json").write_text(json.dumps(series))


def _pids(ranks: int) -> list[int]:
    """Of all ranks. Asked once: gloo keeps some kB of every collective, which is none of our saves'."""
    found = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks)]
    dist.all_gather(found, torch.tensor([os.getpid()]))
    return [int(pid) for pid in found]


def _held(saver: int, ranks: Sequence[int]) -> dict[str, int]:
    """Bytes that all of them hold now, by kind."""
    return {
        "ranks": sum(map(_resident, ranks)),
        "saver": _resident(saver),
        "/dev/shm": sum(_blocks(Path("/dev/shm").rglob("*"))),
        "memfd": _nameless([saver, *ranks]),
    }


def _resident(pid: int) -> int:
    """Memory of the process' own; what it shares is counted where it lies."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def _nameless(pids: Iterable[int]) -> int:
    found: dict[int, int] = {}
    for pid in pids:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if "memfd:harness" in str(path.readlink()):
                    about = path.stat()
                    found[about.st_ino] = about.st_blocks * 512
            except FileNotFoundError:
                continue
    return sum(found.values())


def _blocks(paths: Iterable[Path]) -> Iterable[int]:
    for path in paths:
        try:
            yield path.lstat().st_blocks * 512
        except FileNotFoundError:
            continue


# ── what is printed ─────────────────────────────────────────────────────────────────────────────


def _show(asked: argparse.Namespace, series: Mapping[str, list[int]]) -> int:
    print(f"{asked.mb} MB, {asked.ranks} ranks, {asked.saves} saves to each tier: MB")
    growth = {name: max(sizes[WARM:]) - sizes[WARM - 1] for name, sizes in series.items()}
    for name, sizes in series.items():
        after, end = sizes[WARM - 1] / 1e6, sizes[-1] / 1e6
        print(
            f"  {name:<20} {after:8.1f} after the tenth, {end:8.1f} at the end, {growth[name] / 1e6:+.1f} at most"
        )
    worst = max(growth.values())
    print(
        json.dumps(
            {
                "benchmark": "memory_growth",
                "ours": growth,
                "other": {"after the tenth save": 0},
                "unit": f"bytes more than after the tenth of {asked.saves} saves, at most",
                "ratio": {
                    "largest growth / a rank's share": round(
                        worst * asked.ranks / asked.mb / 1e6, 3
                    )
                },
                "machine": machine(),
            }
        )
    )
    for name, size in growth.items():
        if size > ALLOWED_BYTES:
            print(f"{name} grew by {size} bytes, and may by {ALLOWED_BYTES}", file=sys.stderr)
    return 1 if worst > ALLOWED_BYTES else 0


if __name__ == "__main__":
    sys.exit(main())
