"""A rank that saves 300 times: `many CHECKPOINTS ADDRESS SAVER_PID`; shows what it and the saver use."""

import json
import os
import sys
from pathlib import Path

import psutil

from tests.harness.checkpoint.world import DEADLINE_S, Rank, Run


def used(pid: int) -> dict[str, int]:
    process = psutil.Process(pid)
    return {"resident_bytes": process.memory_info().rss, "descriptors": process.num_fds()}


def main(checkpoints: str, address: str, saver: str) -> None:
    found = {}

    def body(rank: Rank) -> None:
        for step in range(1, 301):
            rank.at(step, force=True, rows=2000)
            assert rank.saver.finish(DEADLINE_S)
            if step in (10, 300):
                found[step] = [used(int(saver)), used(os.getpid())]

    Run(Path(checkpoints), saver=address).attempt(body, world_size=1, keep=1)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
